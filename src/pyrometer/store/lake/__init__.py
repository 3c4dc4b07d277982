"""A lake: the sealed data of several clusters in one folder or bucket.

`LAKE/CLUSTER/manifest.json` lists every file of a cluster that counts. Files never change and have unique names, and a
manifest is replaced as a whole. So a reader of a manifest can read everything that it lists without coordination.
"""

from pyrometer.store.lake.lake_reader import Cache, LakeReader
from pyrometer.store.lake.manifest import MANIFEST, Manifest, manifest_of, manifests
from pyrometer.store.lake.storage import LakeError, LakeStorage

__all__ = ["MANIFEST", "Cache", "LakeError", "LakeReader", "LakeStorage", "Manifest", "manifest_of", "manifests"]
