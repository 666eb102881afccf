"""A scheduler whose invariants are checked after each event."""

from farm.scheduler.messages import Command, Event, StartEpisode
from farm.scheduler.settings import SchedulerSettings
from farm.scheduler.state_machine import Scheduler


def starts(commands: list[Command]) -> list[StartEpisode]:
    return [command for command in commands if isinstance(command, StartEpisode)]


class Driver:
    """A scheduler whose invariants are checked after each event."""

    def __init__(self, *, hold_until: float = 0.0, settings: SchedulerSettings | None = None) -> None:
        self.scheduler = Scheduler(settings, hold_until=hold_until)
        self.now = 0.0

    def tell(self, event: Event, *, after_s: float = 0.0) -> list[Command]:
        self.now += after_s
        commands = self.scheduler.handle(event, self.now)
        self.scheduler.validate(self.now)
        return commands

    def why(self, run_id: str = "r") -> str:
        return self.scheduler.why_waiting(run_id, self.now)
