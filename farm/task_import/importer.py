"""``farm tasks import``: the rows of a data set, or Harbor's directories, become task directories, one at a time."""

import hashlib
import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from farm.task_generation.progress_log import ProgressLog
from farm.task_generation.publish import publish, write_files
from farm.task_import.directory import task_files
from farm.task_import.draft import Commands, ImportDraft
from farm.task_import.fields import Fields, RowError
from farm.task_import.formats import others, swebench
from farm.task_import.rows import Row, read_rows
from farm.tasks import TaskError, read_task, task_directories
from farm.tasks.directory import read_directory
from farm.tasks.schema.unsupported import unsupported_features

HARBOR = "harbor"
ROWS: Mapping[str, Callable[[Fields, Commands], ImportDraft]] = {
    "swebench": swebench.swebench,
    "swesmith": swebench.swesmith,
    "swegym": swebench.swegym,
    "rebench": swebench.rebench,
    "r2e": others.r2e,
    "multiswe": others.multiswe,
    "swebenchpro": others.swebenchpro,
}
FORMATS = (HARBOR, *ROWS)
_TELL_EVERY = 50

OnProgress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """``only``: these ids alone, where there are any. ``limit``: so many tasks, those already there included."""

    format: str
    source: Path
    out: Path
    only: Collection[str] = ()
    limit: int | None = None
    commands: Commands = field(default_factory=Commands)


@dataclass(frozen=True, slots=True)
class ImportedTask:
    """``left_out``: expected ids that no report can have. ``unheeded``: what the task asks for and does not get."""

    id: str
    directory: Path
    image: str
    fail_to_pass: int
    pass_to_pass: int
    left_out: tuple[str, ...] = ()
    unheeded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """``place``: where the row or directory stands; ``id`` as far as it has one."""

    place: str
    id: str
    reason: str


@dataclass(slots=True)
class ImportSummary:
    """``there``: directories that stood already, and were left alone. ``missing``: ids asked for and not found."""

    format: str
    taken: list[ImportedTask] = field(default_factory=list)
    there: list[Path] = field(default_factory=list)
    refused: list[RefusedRow] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def import_all(wish: ImportOptions, *, state_dir: Path, say: OnProgress) -> ImportSummary:
    """Take what can be taken; each directory is put there in one step, so that whoever is stopped may begin again.

    Nothing is fetched, built or run. Raises TaskError where the source has nothing to read.
    """
    import_ = _Import(wish, state_dir, say)
    for place, id_, take in import_.offers():
        if wish.limit is not None and len(import_.summary.taken) + len(import_.summary.there) >= wish.limit:
            break
        import_.offer(place, id_, take)
    import_.summary.missing = sorted(set(wish.only) - import_.seen.keys() - import_.refused_ids)
    return import_.summary


@dataclass(frozen=True, slots=True)
class _Read:
    """An offer that could be read. ``id`` is its directory's name, ``task`` that by which a set knows the task;
    ``digest`` is of all that the directory is made of."""

    id: str
    task: str
    digest: str
    write: Callable[[], ImportedTask]


def journal_path(out: Path, state_dir: Path) -> Path:
    """What the directories below ``out`` were made of: digests by their names."""
    name = hashlib.sha256(str(out.resolve()).encode()).hexdigest()[:16]
    return state_dir / "importing" / f"{name}.jsonl"


_Take = Callable[[], _Read]
"""Raises RowError and TaskError."""


class _Import:
    def __init__(self, wish: ImportOptions, state_dir: Path, say: OnProgress) -> None:
        self.summary = ImportSummary(wish.format)
        self.seen: dict[str, str] = {}
        self.refused_ids: set[str] = set()
        self._named: dict[str, str] = {}
        self._wish = wish
        self._state_dir = state_dir
        self._journal = ProgressLog(journal_path(wish.out, state_dir))
        self._say = say
        self._offered = 0

    def offers(self) -> Iterator[tuple[str, str, _Take]]:
        if self._wish.format == HARBOR:
            for directory in task_directories(self._wish.source):
                yield str(directory), directory.resolve().name, partial(self._harbor, directory)
            return
        for row in read_rows(self._wish.source):
            yield row.place, _id_of(row), partial(self._row, row)

    def offer(self, place: str, id_: str, take: _Take) -> None:
        self._offered += 1
        if self._offered % _TELL_EVERY == 0:
            self._say(f"{self._offered} read, {len(self.summary.taken)} taken, {len(self.summary.refused)} refused")
        only = self._wish.only
        try:
            read = take()
            id_ = read.id
            if only and id_ not in only:
                return
            if id_ in self.seen:
                raise RowError("", f"{id_} was in {self.seen[id_]} already", "make the rows of one data set differ")
            self.seen[id_] = place
            if read.task in self._named:
                what = f"{read.task} is the name of {self._named[read.task]} already"
                raise RowError("", what, "give each a name of its own, or import them apart")
            self._named[read.task] = place
            directory = self._wish.out / id_
            if not directory.exists():
                self.summary.taken.append(read.write())
                self._journal.put(id_, read.digest)
            elif self._journal.get(id_) in (None, read.digest):
                self.summary.there.append(directory)
            else:
                what = f"{directory} was made of what the source no longer says"
                raise RowError("", what, "remove it, or choose another --out")
        except (RowError, TaskError) as error:
            if not only or id_ in only:
                self.refused_ids.add(id_)
                self.summary.refused.append(RefusedRow(place, id_, str(error)))

    def _row(self, row: Row) -> _Read:
        if row.fault:
            raise RowError("", row.fault)
        draft = ROWS[self._wish.format](Fields(row.fields), self._wish.commands)
        said = json.dumps([row.fields, draft.command.line, draft.command.report], sort_keys=True, default=str)
        digest = hashlib.sha256(said.encode(errors="surrogatepass")).hexdigest()
        return _Read(draft.id, draft.id, digest, lambda: self._write(draft))

    def _write(self, draft: ImportDraft) -> ImportedTask:
        directory = self._wish.out / draft.id

        def write(stage: Path) -> None:
            write_files(stage, task_files(draft))
            read_task(stage)

        publish(directory, write)
        counts = len(draft.fail_to_pass), len(draft.pass_to_pass)
        return ImportedTask(draft.id, directory, draft.image, *counts, draft.left_out)

    def _harbor(self, source: Path) -> _Read:
        """ImportedTask as it is, once the farm has read it."""
        task = read_task(source).task
        name = source.resolve().name
        verifier = task.verifier

        def write() -> ImportedTask:
            directory = self._wish.out / name
            publish(directory, lambda stage: _copy(source, stage))
            counts = len(verifier.fail_to_pass), len(verifier.pass_to_pass)
            return ImportedTask(name, directory, task.image, *counts, unheeded=unsupported_features(source))

        return _Read(name, task.id, task.digest, write)


def _copy(source: Path, stage: Path) -> None:
    """The files that define the task, and no links: ``read_directory`` has refused those."""
    for name in read_directory(source):
        (stage / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / name, stage / name, follow_symlinks=False)


def _id_of(row: Row) -> str:
    """For the summary, and for ``only``, where the row cannot be read."""
    id_ = row.fields.get("instance_id")
    return id_[:128] if isinstance(id_, str) and id_.isprintable() else ""
