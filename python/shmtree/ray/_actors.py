"""Gateways and keepers as Ray actors, and calls to them."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

import ray
from ray.exceptions import (
    ActorUnschedulableError,
    GetTimeoutError,
    ObjectStoreFullError,
    OutOfDiskError,
    RayActorError,
    RayError,
    RayTaskError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ._gateways import Ended, LinkLost, report
from ._keeper import Keeper, Key, Stored
from ._node import Node

_PAUSE_S = 0.2
_INLINE_BYTES = 100_000  # Ray sends results below 100 KiB with the answer itself
_SILENT_S = 5.0  # seconds without an answer, after which a caller checks that the node is alive
_JOB_S = 5.0  # interval of checks for the end of the job


def context() -> Any:
    """Returns Ray's runtime context. Raises RuntimeError in a process that is connected by ``ray://``."""
    if ray.util.client.ray.is_connected():
        raise RuntimeError("shmtree.ray does not work in a ray:// client; run this process on a node of the cluster")
    return ray.get_runtime_context()


def here() -> str:
    """Returns the id of the node that this process runs on."""
    return str(context().get_node_id())


def machine() -> str:
    """Returns an id that is the same for all nodes whose processes can see each other.

    One machine may run several raylets.
    """
    if os.environ.get("SHMTREE_RAY_LOCAL", "1") == "0":
        return here()
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()}-{os.stat('/proc/self/ns/pid').st_ino}"


def gateway(node: str) -> Any:
    return _actor(_Gateway, f"shmtree-gateway-{node}", node)


def keeper(node: str) -> Any:
    return _actor(_Keeper, f"shmtree-keeper-{node}", node)


def call(node: str, method: str, *arguments: Any) -> Any:
    """Calls a method of a node's gateway and blocks for the answer.

    Raises Ended if the node, or the object that the call is about, no longer exists.
    """
    if not ray.is_initialized():
        raise Ended  # the job is over; a call would start a new one
    while True:
        try:
            status, value = _wait_for(node, gateway(node).call.remote(method, *arguments))
            break
        except (RayActorError, ActorUnschedulableError) as error:
            error.__traceback__ = None  # breaks a cycle in which the caller would keep the end that is being made
            if node in _gone((node,)):
                raise Ended(((node, 0),)) from None
            time.sleep(_PAUSE_S)
    if status == "ended":
        raise Ended(value)
    return value


def call_own(method: str, *arguments: Any) -> Any:
    """Calls the gateway of this node."""
    if not ray.is_initialized():
        raise Ended
    return call(here(), method, *arguments)


def _wait_for(node: str, answer: Any) -> Any:
    while True:
        try:
            return ray.get(answer, timeout=_SILENT_S)
        except GetTimeoutError:
            if node in _gone((node,)):
                raise Ended(((node, 0),)) from None


def tell(node: str, method: str, *arguments: Any) -> None:
    """Calls a gateway without waiting for an answer, and ignores errors."""
    if ray.is_initialized():
        gateway(node).call.remote(method, *arguments)


def node_of(home: Any) -> str:
    """Returns the node of an actor (by its handle; waits until it has started), the node of that id, or this node."""
    if home is None:
        return here()
    if isinstance(home, str):
        if home in _gone((home,)):
            raise ValueError(f"home is {home!r}; no live node has that id")
        return home
    if not isinstance(home, ray.actor.ActorHandle):
        raise TypeError(
            f"home is a {type(home).__name__}; it must be the handle of an actor, the id of a node, or None"
        )
    return str(ray.get(home.__ray_call__.remote(_node_of_actor)))


def _node_of_actor(_: Any) -> str:
    return str(ray.get_runtime_context().get_node_id())


def nodes() -> set[str]:
    """Returns the ids of the live nodes."""
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def _gone(of: Iterable[str]) -> set[str]:
    return set(of) - nodes()


def _namespace() -> str:
    return f"shmtree-{context().get_job_id()}"


_known: dict[tuple[str, str, str], Any] = {}


def _actor(cls: Any, name: str, node: str) -> Any:
    """Returns the actor of that name, and makes it on that node if there is none. The actor ends with its job."""
    key = (context().gcs_address, _namespace(), name)
    if key not in _known:
        _known[key] = cls.options(
            name=name,
            namespace=key[1],
            get_if_exists=True,
            lifetime="detached",
            max_restarts=-1,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        ).remote(node)
    return _known[key]


class Calls:
    """Simultaneous calls about replay buffers to several gateways, one call per node."""

    def __init__(self, calls: Mapping[str, tuple[Any, ...]]) -> None:
        self._calls = dict(calls)
        self._in_flight = self._begin()

    def _begin(self) -> dict[str, Any]:
        if self._calls and not ray.is_initialized():
            raise Ended
        return {node: gateway(node).call.remote("replay", *call) for node, call in self._calls.items()}

    def answers(self) -> tuple[dict[str, Any], set[str]]:
        """Returns the answers by node, and the nodes that no longer exist.

        Calls killed gateways again. Raises a gateway's error.
        """
        answers: dict[str, Any] = {}
        gone: set[str] = set()
        errors: list[BaseException] = []  # all are collected, because Ray prints errors that were not retrieved
        while self._in_flight:
            for node, reference in self._in_flight.items():
                try:
                    status, value = ray.get(reference)
                except RayTaskError as error:
                    errors.append(error.cause)
                    del self._calls[node]
                    continue
                except RayError:  # the gateway was killed, or its answer was lost
                    continue
                if status == "ended":
                    raise Ended(value)
                answers[node] = value
                del self._calls[node]
            if errors:
                raise errors[0] from None
            if self._calls:
                gone |= _gone(self._calls)
                self._calls = {node: each for node, each in self._calls.items() if node not in gone}
                time.sleep(_PAUSE_S)
            self._in_flight = self._begin()
        return answers, gone


class _ByRay:
    """Lets a gateway call the gateways of other nodes. Calls may arrive in any order."""

    def __init__(self) -> None:
        self._handles: dict[str, Any] = {}

    async def call(self, node: str, method: str, *arguments: Any) -> Any:
        try:
            if node not in self._handles:
                self._handles[node] = await asyncio.to_thread(gateway, node)
            status, value = await self._answer(node, self._handles[node].call.remote(method, *arguments))
        except (RayActorError, ActorUnschedulableError):
            if await self.gone((node,)):
                raise Ended(((node, 0),)) from None
            raise LinkLost from None
        except RayError as error:  # the arguments were lost in transit, or the other side has failed
            report(error)
            raise LinkLost from None
        if status == "ended":
            raise Ended(value)
        if status == "lost":
            raise LinkLost(value)
        return value

    def offer(self, buffers: list[Any]) -> list[Any]:
        """Puts buffers into Ray's store, unless they are small: Ray does not report that a result has no space."""
        try:
            return buffers if sum(map(len, buffers)) <= _INLINE_BYTES else [ray.put(buffers)]
        except (ObjectStoreFullError, OutOfDiskError) as error:
            raise LinkLost(f"Ray's object store on node {here()} is full: {error}") from None

    async def fetch(self, buffers: list[Any]) -> list[Any]:
        try:
            return await buffers[0] if buffers and isinstance(buffers[0], ray.ObjectRef) else buffers
        except RayError as error:  # lost in transit
            report(error)
            raise LinkLost from None

    async def _answer(self, node: str, call: Any) -> Any:
        """Waits for an answer. Ray keeps calls of an actor that is to restart, even if it cannot restart."""
        answer = asyncio.wrap_future(call.future())
        try:
            while not (await asyncio.wait((answer,), timeout=_SILENT_S))[0]:
                if await self.gone((node,)):
                    raise Ended(((node, 0),))
            return answer.result()
        finally:
            answer.cancel()

    async def gone(self, nodes: Iterable[str]) -> set[str]:
        nodes = tuple(nodes)
        return await asyncio.to_thread(_gone, nodes) if nodes else set()


class _KeeperByRay:
    """The keeper of a node: an actor that is made on the node if there is none."""

    def __init__(self, node: str) -> None:
        self._node = node

    async def identify(self) -> int:
        return int(await self._call("identify"))

    async def store(self, key: Key, kept: Stored | None) -> None:
        await self._call("store", key, kept)

    async def all(self) -> tuple[int, dict[Key, Stored]]:
        number, everything = await self._call("all")
        return number, everything

    async def _call(self, method: str, *arguments: Any) -> Any:
        while True:
            try:
                actor = await asyncio.to_thread(keeper, self._node)
                return await getattr(actor, method).remote(*arguments)
            except RayActorError:
                await asyncio.sleep(_PAUSE_S)


def _job_is_over() -> bool:
    own = ray.get_runtime_context().get_job_id()
    return any(job["JobID"] == own and job["IsDead"] for job in ray._private.state.jobs())


async def _until_job_is_over() -> None:
    while not await asyncio.to_thread(_job_is_over):
        await asyncio.sleep(_JOB_S)
    ray.kill(ray.get_runtime_context().current_actor)  # the actor is not restarted


def call_itself() -> None:
    """Makes this actor start its work.

    After a restart, possibly no other process calls it, so nothing else would start it.
    """
    actor = ray.get_runtime_context().current_actor

    def call() -> None:
        while True:
            try:
                actor.pid.remote().future().result()  # ray.get would warn about actors with an event loop
                return
            except RayError:  # Ray does not know yet that the actor is alive
                time.sleep(_PAUSE_S)

    threading.Thread(target=call, daemon=True).start()


@ray.remote(num_cpus=0, max_concurrency=10_000)
class _Gateway:
    """The gateway: `_node.Node` as an actor, one per node and job; Ray restarts it if it is killed."""

    def __init__(self, node: str) -> None:
        self._name = node
        self._node: Node | None = None
        self._starting = asyncio.Lock()
        self._leaving: Any = None
        call_itself()

    async def _started(self) -> Node:
        async with self._starting:
            if self._node is None:
                keeper = _KeeperByRay(self._name)
                node = Node(self._name, machine(), _ByRay(), keeper)
                await node.start()
                self._leaving = asyncio.ensure_future(_until_job_is_over())
                self._node = node
        return self._node

    async def call(self, method: str, *arguments: Any) -> tuple[str, Any]:
        node = await self._started()
        try:
            return "done", await getattr(node, method)(*arguments)
        except Ended as ended:
            return "ended", ended.peers
        except LinkLost as lost:
            return "lost", str(lost)

    async def pid(self) -> int:
        await self._started()
        return os.getpid()


@ray.remote(num_cpus=0, max_concurrency=100)
class _Keeper(Keeper):
    """`_keeper.Keeper` as an actor, one per node and job."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self._leaving: Any = None

    async def identify(self) -> int:
        if self._leaving is None:
            self._leaving = asyncio.ensure_future(_until_job_is_over())
        return self.number

    async def store(self, key: Key, kept: Stored | None) -> None:  # type: ignore[override]
        Keeper.store(self, key, kept)

    async def all(self) -> tuple[int, dict[Key, Stored]]:  # type: ignore[override]
        return Keeper.all(self)

    async def pid(self) -> int:
        return os.getpid()
