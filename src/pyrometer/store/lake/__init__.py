"""A lake: what the servers of several clusters have sealed, side by side in one folder or bucket.

`LAKE/CLUSTER/manifest.json` names every file of a cluster that counts. Files are never changed and have names of their
own; a manifest is replaced whole. So whoever has read a manifest can read all that it names, without asking anybody.
"""

from pyrometer.store.lake.manifest import MANIFEST, Manifest, manifest_of, manifests
from pyrometer.store.lake.place import LakeError, Place
from pyrometer.store.lake.reading import Cache, LakeReading

__all__ = ["MANIFEST", "Cache", "LakeError", "LakeReading", "Manifest", "Place", "manifest_of", "manifests"]
