"""Chains of owners above pods."""

from __future__ import annotations

import asyncio

from pyrometer.collect.kubernetes.discovery import Discovery
from pyrometer.collect.kubernetes.objects import Meta, ObservedObject, OwnerObject, Reference
from pyrometer.collect.kubernetes.owner_chains import MAX_OWNERS, OwnerChains, referenced_owner
from tests.support.recorded_api import RecordedApi


def new_chains():
    api = RecordedApi({})

    async def follow(group, kind):
        return None

    return OwnerChains(api, Discovery(api), follow, lambda owner: owner)


def owned(uid, owner_uid):
    reference = Reference("v1", "Thing", owner_uid, owner_uid, controller=True)
    return OwnerObject(Meta(name=uid, uid=uid, namespace="ml", owner_references=[reference]), "v1", "Thing")


def test_owner_chains_follow_known_owners_nearest_first():
    chains = new_chains()
    chains.add([ObservedObject(owned("job", "workflow"), 1)])
    chain = asyncio.run(chains.above(owned("pod", "job").metadata))
    assert [owner.metadata.uid for owner in chain] == ["job", "workflow"]


def test_owner_chains_limit_cycles():
    chains = new_chains()
    chains.add([ObservedObject(owned("a", "b"), 1), ObservedObject(owned("b", "a"), 1)])
    assert len(asyncio.run(chains.above(owned("pod", "a").metadata))) == MAX_OWNERS


def test_owner_chains_return_newest_change_once():
    chains = new_chains()
    first, second = ObservedObject(owned("a", "b"), 1), ObservedObject(owned("a", "c"), 2)
    chains.add([first, second])
    assert list(chains.take_changed()) == [second]
    assert list(chains.take_changed()) == []


def test_owner_chains_forget_deleted_owners_later():
    chains = new_chains()
    chains.add([ObservedObject(owned("a", "b"), 1), ObservedObject(owned("a", "b"), 2, gone=True)])
    pod = owned("pod", "a").metadata
    chains.forget(2)
    assert len(asyncio.run(chains.above(pod))) == 2
    chains.forget(3)
    assert len(asyncio.run(chains.above(pod))) == 1  # only the reference is left


def test_referenced_owner_has_fields_of_reference():
    owner = referenced_owner(Reference("batch/v1", "Job", "train", "uid-1"), "ml")
    assert (owner.metadata.name, owner.metadata.uid, owner.metadata.namespace) == ("train", "uid-1", "ml")
    assert (owner.group, owner.kind) == ("batch", "Job")
