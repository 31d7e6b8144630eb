"""The class `Study`, which offers everything that can be done with a study, and its creation."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rayfbnn.data import Source, read_dataset
from rayfbnn.errors import ConfigError, DataError, RayFBNNError, StoreExistsError
from rayfbnn.run.hardware import kernel_name
from rayfbnn.spec import RunSpec
from rayfbnn.store.storage import storage_of
from rayfbnn.store.storage.building import hidden_name
from rayfbnn.store.storage.places import Place, place_of
from rayfbnn.store.store import Store
from rayfbnn.study.files import StudyFiles
from rayfbnn.study.plan import (
    FILE,
    FOLDER,
    Member,
    StudyConfiguration,
    check_size,
    checked_seeds,
    first_with_cases,
    lengths,
    numbered_seeds,
    write_plan,
)
from rayfbnn.study.rule import Rule
from rayfbnn.study.sealed import TRAIN, grid
from rayfbnn.study.study_status import StudyStatus, status_of_study
from rayfbnn.verbs.arguments import (
    Spec,
    check_device,
    check_folder,
    check_options,
    output_path,
    read_run_data,
    read_spec,
)

if TYPE_CHECKING:
    from rayfbnn.answers.predict import Prediction
    from rayfbnn.data import Dataset
    from rayfbnn.run.running import LogFormat
    from rayfbnn.study.files import Look
    from rayfbnn.study.training_files import Rank, StudyPrediction


class Study(StudyFiles):
    """Many runs of one posterior, or of several. Use `create` or `open` to get one.

    Attributes
    ----------
    place
        The folder, or the address.
    plan
        Its configurations, seeds and rule.
    members
        The stores of its members.
    """

    @staticmethod
    def create(
        path: str | Path,
        spec: Spec,
        *,
        seeds: int | Sequence[int],
        data: Source | None = None,
        set: Sequence[str] = (),
        vary: Sequence[str] = (),
        superchains: bool = False,
        rule: Rule | None = None,
    ) -> Study:
        """Create a study of one configuration, or of a grid of them, with several seeds. Nothing is sampled.

        The last phase of the configuration has the iterations of all looks together. The study has its own
        copy of the configuration and of the training cases.

        Parameters
        ----------
        path
            The folder of the study, or its address; nothing may exist there yet.
        spec
            See `sample`. The seed of the configuration is not used.
        seeds
            The number of seeds, such as 20, which are then 1, 2, ..., or the seeds, such as 1,2,5.
        data, set
            See `sample`.
        vary
            The values of a key, as "key.path=a,b,c", one configuration for each. With several keys, every
            combination is a configuration. The values of data.train are training files, and name_{0..9}.csv
            stands for ten of them. Keys in one text, as "key=a,b; other=c,d", go together: a with c,
            and b with d.
        superchains
            Start all chains of a member from one draw from the prior (initial.shared).
        rule
            When the study stops. The default is `Rule()`.
        """
        place, rule = place_of(path), rule or Rule()
        if isinstance(place, Path):
            check_folder(place)
        numbers = checked_seeds(numbered_seeds(seeds) if isinstance(seeds, int) else seeds)
        shared = ["initial={from_prior=true, shared=true}"] if superchains else []
        combinations = grid(vary)
        check_size(len(combinations), len(numbers))
        storage = storage_of(place)
        if storage.exists(place / FILE):
            raise StoreExistsError(f"{place}: is already a study; run it, or choose a new folder")
        if data is not None and any(key.startswith(f"{TRAIN}=") for key in combinations[0]):
            raise ConfigError(f"data: must be left out if {TRAIN} is varied")
        configurations: list[StudyConfiguration] = []
        specs: list[RunSpec] = []
        for number, varied in enumerate(combinations):
            with _naming(number, varied):
                asked = read_spec(spec, [*set, *shared, *varied, f"seed={numbers[0]}"])
                resolved, dataset = read_run_data(asked, data)
                _check(resolved, dataset)
            specs.append(resolved)
            configurations.append(StudyConfiguration(number, varied, resolved.to_dict(), dataset.hash))
        _check_are_different(configurations)
        # The store of the first member with each set of cases keeps them for all others. A crash before the
        # plan is written leaves a folder that is not a study, and a second call completes it.
        first = {Member(n, numbers[0]).name: n for n in first_with_cases(configurations).values()}
        _check_is_new(place, first)
        folders = (place, place / FOLDER)
        new = [folder for folder in folders if isinstance(folder, Path) and not os.path.lexists(folder)]
        if not storage.exists(place):  # it may be a link to an empty folder, since the user named it
            storage.mkdir(place)
        storage.mkdir(place / FOLDER)
        storage.check_folders(place / FOLDER / name for name in first)
        with _removed_if_empty(new):
            for name, number in first.items():
                if configurations[number].data_hash != dataset.hash:  # one table at a time is in memory
                    dataset = read_dataset(specs[number])
                shortest = specs[number].with_iterations(lengths(configurations[number], rule.looks)[0])
                _create_first(place, place / FOLDER / name, shortest, dataset)
        write_plan(storage, place, configurations, numbers, rule)
        return Study.open(path)

    def status(self) -> StudyStatus:
        """Return the progress of every configuration and member, and the decision of each look."""
        return status_of_study(self)

    def run(
        self,
        *,
        workers: int | None = None,
        address: str | None = None,
        max_failures: int = 3,
        progress: bool = True,
        log_format: LogFormat = "text",
    ) -> StudyStatus:
        """Run every member to the next look, decide, and continue until every configuration is complete.

        A study may be stopped or killed and run again, and several drivers may run one study at once, on one
        machine or many. The draws and decisions are the same, byte for byte.

        Parameters
        ----------
        workers
            Number of processes of Ray on this machine that take members. The default is one for each core. 0
            runs members in this process, one after another.
        address
            Address of a Ray cluster, whose workers each take members. If there are more workers than members,
            they share the batches of one member after another.
        max_failures
            Number of workers that may die at one member, one after another, and be replaced before the study
            fails.
        progress
            Show a line for each member and each look on standard error.
        log_format
            "json" adds a line of JSON for each block to a log next to the store of each member.
        """
        from rayfbnn.run.running import RunOptions
        from rayfbnn.study.driving import run_study

        options = RunOptions(workers, address, max_failures, progress, log_format)
        check_options(self.members.with_cases().spec, options)
        self.check_members()
        run_study(self, options)
        return self.status()

    def diagnose(self, configuration: int = 0, *, others: Sequence[Study] = ()) -> Look:
        """Judge the draws that are committed now by the rule of the study. Nothing is recorded.

        Several studies of the same configurations and cases are merged.

        Parameters
        ----------
        configuration
            Number of the configuration of a grid, counted from 0; `status` lists them.
        others
            Studies of the same configurations and cases with other seeds, which are merged with this one.
        """
        from rayfbnn.study.training_files import look_at_committed

        return look_at_committed((self, *others), configuration)

    def predict(
        self,
        data: Source,
        *,
        configuration: int | None = None,
        others: Sequence[Study] = (),
        out: str | Path | None = None,
    ) -> Prediction:
        """Predict the targets of new cases from all committed draws of a configuration's members.

        Parameters
        ----------
        data
            The cases to predict: a CSV or Parquet file. From Python also a DataFrame or a pair of arrays.
        configuration
            Number of the configuration of a grid, counted from 0; `status` lists them. The default is the
            first. From Python it must be given if there are several training files.
        others
            Studies that are merged with this one.
        out
            A CSV file for the table of predictions, one row for each case.
        """
        from rayfbnn.study.training_files import stores_with_draws
        from rayfbnn.verbs.predicting import predict

        if configuration is None and self.n_training_files > 1:
            raise ConfigError(
                f"configuration: there are {self.n_training_files} training files; name a configuration, or"
                " use predict_each"
            )
        return predict(stores_with_draws((self, *others), configuration or 0), data=data, out=out)

    def predict_each(
        self,
        data: Source | list[Source],
        *,
        others: Sequence[Study] = (),
        out: str | Path | None = None,
    ) -> StudyPrediction:
        """Predict with each configuration separately, such as those of several training files.

        Draws of a configuration's members are pooled, those of two configurations never.

        Parameters
        ----------
        data
            The cases to predict, as for `predict`, or a list with the cases for each training file, in the
            order in which `vary` names the files.
        others
            Studies that are merged with this one.
        out
            A CSV or Parquet file for the table of predictions, whose first column is the configuration.

        Returns
        -------
        StudyPrediction
            The prediction of each configuration, a table and a summary of all, and the means of the measures
            over training files.
        """
        from rayfbnn.study.training_files import predict_each

        return predict_each(self, data, others, out)

    def rank(self, data: Source | list[Source]) -> list[Rank]:
        """Rank the configurations by the mean log probability of the targets of cases, the best first.

        Configurations that differ only in their training files are ranked together.

        Parameters
        ----------
        data
            Cases with targets, or a list with the cases for each training file.
        """
        from rayfbnn.study.training_files import rank

        return rank(self, data)

    def report(self, out: str | Path, *, data: Source | list[Source] | None = None) -> Path:
        """Write an HTML page on the study: verdict, looks, members, and with `data` the ranking.

        Parameters
        ----------
        out
            The page to write.
        data
            Cases with targets; configurations are ranked by how probable they find them. If training files
            are varied, this is a file for each, in their order, such as new_{0..9}.csv, or one for all. From
            Python a list.

        Returns
        -------
        Path
            The page.
        """
        from rayfbnn.study.html_page import write_report

        return write_report(self, output_path(out), data)


@contextmanager
def _removed_if_empty(new: Sequence[Path]) -> Iterator[None]:
    """Remove new folders, each in the one before it, if no store can be created in them."""
    try:
        yield
    except RayFBNNError:
        for folder in reversed(new):
            with suppress(OSError):  # something is in the folder
                folder.rmdir()
        raise


def _create_first(study: Place, store: Place, spec: RunSpec, dataset: Dataset) -> None:
    """Create a member that keeps training cases, unless a creation that crashed has left the same one."""
    if not storage_of(store).is_taken(store):
        Store.create(store, spec, dataset, kernel=kernel_name(spec))
    elif Store.open(store).data.hash != dataset.hash or Store.open(store).spec != spec:
        raise StoreExistsError(f"{store}: belongs to another, unfinished study; remove {study} first")


@contextmanager
def _naming(number: int, varied: Sequence[str]) -> Iterator[None]:
    """Name the configuration of a grid in an error about its keys or its training cases."""
    try:
        yield
    except (ConfigError, DataError) as exc:
        if not varied:
            raise
        raise type(exc)(f"configuration {number} ({', '.join(varied)}): {exc}") from exc


def _check(spec: RunSpec, dataset: Dataset) -> None:
    """Raise ConfigError for a configuration that no member can have."""
    if spec.ladder is not None and spec.initial.shared:
        raise ConfigError(
            "initial.shared: ladders must not share a start, because they would agree from the beginning, got"
            " true with [ladder]; leave it (or superchains) out"
        )
    spec.check_gradient()
    spec.check_data(dataset.n_cases)
    check_device(spec.device)


def _check_are_different(configurations: Sequence[StudyConfiguration]) -> None:
    """Raise ConfigError if two configurations are the same posterior, sampled in the same way."""
    seen: dict[str, StudyConfiguration] = {}
    for one in configurations:
        data = {**one.keys["data"], "train": one.data_hash}
        other = seen.setdefault(json.dumps({**one.keys, "data": data}), one)
        if other is not one:
            raise ConfigError(
                f"vary: configurations {other.number} ({other.label}) and {one.number} ({one.label}) are the"
                " same"
            )


def _check_is_new(place: Place, first: Collection[str]) -> None:
    """Raise ConfigError if the folder has anything but the remains of a creation that crashed."""
    storage = storage_of(place)
    try:
        names = storage.listdir(place)
        members = storage.listdir(place / FOLDER) if FOLDER in names else []
    except FileNotFoundError:
        return
    ours = {*first, *map(hidden_name, first)}
    foreign = [name for name in names if name != FOLDER] + [
        f"{FOLDER}/{name}" for name in members if name not in ours
    ]
    if foreign:
        raise ConfigError(
            f"{place}: has files that do not belong to a study, such as {foreign[0]}; choose a new folder"
        )
