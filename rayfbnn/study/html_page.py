"""The HTML page on a study: its verdict, looks and members, pictures of both, and the ranking."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rayfbnn.data import Source, is_path
from rayfbnn.output.facts import Fact, Paragraph, TableFact, html_of
from rayfbnn.output.lines import shortened
from rayfbnn.output.whole_file import whole_file
from rayfbnn.pictures.figures import Axes, Panel
from rayfbnn.pictures.panels import set_log_scale
from rayfbnn.reporting.page import Section, beside, check_installed, page
from rayfbnn.study.files import Look, StudyFiles
from rayfbnn.study.plan import Member
from rayfbnn.study.study_status import ConfigurationStatus, status_of_study
from rayfbnn.study.training_files import rank, ranking
from rayfbnn.verbs.arguments import check_output

_SHOWN = 12  # quantities in a table and in a picture; the worst are shown


def write_report(study: StudyFiles, out: Path, data: Source | list[Source] | None) -> Path:
    """Write the page to a file, completely or not at all, and return its path.

    data  cases with targets, for ranking the configurations; see `rank`
    """
    check_installed()
    sources: list[Source] = data if isinstance(data, list) else [data]
    check_output(out, inputs=[Path(source) for source in sources if is_path(source)])
    status = status_of_study(study)
    several = len(status.configurations) > 1
    sections = [_section("verdict", [("", status.facts())])]
    if data is not None:
        sections.append(_section("ranking", [("", _ranking(study, data))]))
    each = [(one.label if several else "", one) for one in status.configurations]
    sections.append(_section("looks", [(label, _looks(one)) for label, one in each]))
    members = [(label, _members(study, number, one)) for number, (label, one) in enumerate(each)]
    sections.append(_section("members", members))
    n_members = sum(len(one.members) for one in status.configurations)
    text = page("Study", f"{study.place}: {n_members} members", sections)
    with whole_file(out) as file:
        file.write(text.encode())
    return out


def _section(key: str, panels: Sequence[tuple[str, Iterable[Fact]]]) -> Section:
    return Section(key, key.capitalize(), tuple((label, html_of(facts)) for label, facts in panels))


def _looks(configuration: ConfigurationStatus) -> Iterator[Fact]:
    if not configuration.looks:
        yield Paragraph("No look has been taken yet.")
        return
    last = configuration.looks[-1]
    panel = Panel(
        _draw_rhat,
        (configuration.looks,),
        alt="Nested R-hat of each quantity at each look",
        caption="Nested R-hat of each quantity against the work: draws of all chains of all members.",
        size=(6.0, 3.0),
    )
    rows = [
        (name, one.mean, one.sd, one.rhat, one.mcse, one.drift, ", ".join(map(str, one.apart)))
        for name, one in ((name, last.quantities[name]) for name in _worst(last))
    ]
    numbers = ("mean", "sd", "nested R-hat", "mcse / sd", "shared drift / sd")
    head = ("quantity", *numbers, "seeds farthest from the middle")
    yield beside([panel])
    yield TableFact(head, rows)


def _worst(look: Look) -> list[str]:
    def key(name: str) -> tuple[bool, float]:
        one = look.quantities[name]
        return one.ok, -math.inf if one.rhat is None else -one.rhat

    return sorted(look.quantities, key=key)[:_SHOWN]


def _draw_rhat(axis: Axes, looks: tuple[Look, ...]) -> None:
    work = [look.draws * len(look.seeds) for look in looks]
    for name in _worst(looks[-1]):
        values = [look.quantities[name].rhat if name in look.quantities else None for look in looks]
        excess = [math.nan if value is None else value - 1 for value in values]
        axis.plot(work, excess, marker="o", label=shortened(name))
    set_log_scale(axis, "y")
    axis.set_xlabel("draws of a chain, times members")
    axis.set_ylabel("nested R-hat - 1")
    axis.legend(fontsize=6, ncol=2)


def _members(study: StudyFiles, number: int, configuration: ConfigurationStatus) -> Iterator[Fact]:
    rows = [(one.seed, one.state, one.draws, one.reason) for one in configuration.members]
    spreads = {}
    for one in configuration.members:
        if one.draws and one.state != "failed":
            values = study.members.open(Member(number, one.seed)).read_stat("log_likelihood")
            spreads[one.seed] = [float(value) for value in values.reshape(-1)[:: max(1, values.size // 2000)]]
    if spreads:
        panel = Panel(
            _draw_members,
            (spreads,),
            alt="Log likelihood of each member's draws",
            caption="Log likelihood of the draws of each member, side by side.",
            size=(6.0, 3.0),
        )
        yield beside([panel])
    yield TableFact(("seed", "state", "draws of each chain", "why"), rows)


def _draw_members(axis: Axes, spreads: dict[int, list[float]]) -> None:
    axis.boxplot(list(spreads.values()), showfliers=False)
    axis.set_xticks(range(1, len(spreads) + 1), [str(seed) for seed in spreads], rotation=90, fontsize=6)
    axis.set_xlabel("seed")
    axis.set_ylabel("log likelihood")


def _ranking(study: StudyFiles, data: Source | list[Source]) -> list[Fact]:
    ranks = rank(study, data)
    by = "file" if ranks[0].n_files > 1 else "case"
    errors = f"The standard errors are those of the differences from the best, {by} by {by}."
    return [ranking(ranks), Paragraph(errors)]
