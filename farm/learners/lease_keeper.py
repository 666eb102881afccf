"""Leases that a thread extends for as long as their groups are in use."""

import threading
from types import TracebackType
from typing import Self

from farm.client import FarmClient, FarmError, GatewayUnavailable, Lease, LeaseLost

EXTENSIONS_PER_LEASE = 3


class LeaseKeeper:
    """Extends each lease that it holds to ``lease_s`` from now, three times in that period.

    A lease that is lost is dropped: its groups are delivered again. Any other failure is retried at the next extension.
    """

    def __init__(self, farm: FarmClient, lease_s: float) -> None:
        self._farm = farm
        self._lease_s = lease_s
        self._held: dict[str, Lease] = {}
        self._change = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._extend_until_stopped, name="farm-lease-keeper", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the thread and nack the leases that are still held."""
        self._stop.set()
        self._thread.join()
        for lease_id in self.lease_ids:
            self.nack(lease_id)

    @property
    def lease_ids(self) -> tuple[str, ...]:
        with self._change:
            return tuple(self._held)

    def hold(self, lease: Lease) -> None:
        with self._change:
            self._held[lease.lease_id] = lease

    def ack(self, lease_id: str) -> bool:
        """Ack a lease and hold it no longer. Return False if it was lost, or if no gateway answers.

        Its groups may then be delivered again.
        """
        self._release(lease_id)
        try:
            self._farm.ack(lease_id)
        except (GatewayUnavailable, LeaseLost):
            return False
        return True

    def nack(self, lease_id: str) -> None:
        """Nack a lease and hold it no longer. A farm that does not answer frees the groups when the lease expires."""
        self._release(lease_id)
        try:
            self._farm.nack(lease_id)
        except FarmError:
            return

    def _release(self, lease_id: str) -> None:
        with self._change:
            self._held.pop(lease_id, None)

    def _extend_until_stopped(self) -> None:
        while not self._stop.wait(self._lease_s / EXTENSIONS_PER_LEASE):
            for lease_id in self.lease_ids:
                try:
                    self._farm.extend(lease_id, self._lease_s)
                except LeaseLost:
                    self._release(lease_id)
                except FarmError:
                    continue
