"""The report is one page without outside help, for every data model and state of a run."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("matplotlib", reason="the plots extra is not installed")
pytest.importorskip("jinja2", reason="the plots extra is not installed")

from rayfbnn import api  # noqa: E402
from rayfbnn.draws.view import committed  # noqa: E402
from rayfbnn.errors import ConfigError  # noqa: E402
from rayfbnn.run.sampler import Sampler  # noqa: E402
from rayfbnn.store.store import Store  # noqa: E402
from tests.support.small import make_store, small_spec  # noqa: E402
from tests.support.store.standin_store import normal  # noqa: E402

HERE: dict[str, Any] = {"workers": 0, "progress": False}
QUIET: dict[str, Any] = {"progress": False}
HOSTILE = "<script id=\"a\">'$x$ & #0072b2'</script>"  # pictures shorten longer names
MODELS: dict[str, dict[str, Any]] = {
    "real": {"kind": "real"},
    "binary": {"kind": "binary"},
    "class": {"kind": "class"},
    "count": {"kind": "count"},
    "survival": {"kind": "survival", "hazard": "piecewise", "time_points": [0.5, 1.0]},
    "heteroscedastic": {"kind": "heteroscedastic"},
}
SECTIONS = ["glance", "data", "model", "verdicts", "predictions", "residuals", "inputs", "effects"]


def table(kind: str, n_cases: int = 24, seed: int = 3) -> pd.DataFrame:
    """A number, text, a number with a hostile name, and targets of which one is missing."""
    x, other, noise = normal(seed, (3, n_cases))
    city = np.array(["Oslo", "Rome", "Łódź"])[np.arange(n_cases) % 3]
    v = x + 0.5 * (city == "Oslo") + 0.3 * noise
    targets = {
        "real": v,
        "heteroscedastic": v,
        "binary": np.where(v > 0, "yes", "no"),
        "class": np.array(["low <", "mid", "high"])[np.digitize(v, [-0.5, 0.5])],
        "count": np.floor(np.exp(1 + 0.5 * v)),
        "survival": np.exp(v) * np.where(np.arange(n_cases) % 3 == 1, -1, 1),
    }
    frame = pd.DataFrame({"x": x, HOSTILE: other, "city": city, "y": targets[kind]})
    if kind in ("real", "count"):
        frame.loc[4, "y"] = np.nan
    return frame


def keys(kind: str, **changes: Any) -> dict[str, Any]:
    operations = [{"op": "sample-sigmas"}, {"op": "heatbath"}, {"op": "hybrid", "steps": 3, "stepsize": 0.1}]
    return {
        "seed": 1,
        "chains": 2,
        "draws_per_block": 4,
        "data": {"targets": ["y"]},
        "model": MODELS[kind],
        "network": {"hidden": [{"units": 2, "activation": "tanh"}]},
        "phase": [{"iterations": 8, "operations": operations}],
        **changes,
    }


@pytest.fixture(scope="module")
def store_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that returns the store of a data model, sampled once."""
    folder = tmp_path_factory.mktemp("report")

    def store(kind: str) -> Path:
        path = folder / f"{kind}.zarr"
        if not path.exists():
            api.sample(keys(kind), path, data=table(kind), **HERE)
        return path

    return store


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are made, but not laid out and written, which takes most of the time."""
    monkeypatch.setattr("rayfbnn.reporting.page.to_svg", lambda *_: '<svg viewBox="0 0 1 1"></svg>')


class Page(HTMLParser):
    """The text of a page, its addresses, scripts, names and links within it, by section."""

    def __init__(self, path: Path, source: str | None = None) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.scripts, self.unlabelled = 0, 0
        self.names: list[str] = []
        self.links: list[str] = []
        self.sections: list[str] = []
        self.text = ""
        self.source = path.read_text() if source is None else source
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        of_tag = {name: value or "" for name, value in attrs}
        if tag == "script" or any(name.startswith("on") for name in of_tag):
            self.scripts += 1
        if tag == "section":
            self.sections.append(of_tag["id"])
        if tag == "svg" and not of_tag.get("aria-label"):
            self.unlabelled += 1
        if "id" in of_tag:
            self.names.append(of_tag["id"])
        for name in ("src", "href", "xlink:href", "action"):
            address = of_tag.get(name, "")
            (self.links if address.startswith("#") else self.addresses).append(address)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    "kind",
    [
        "class",
        "survival",
        "count",
        *(pytest.param(k, marks=pytest.mark.long) for k in ("binary", "heteroscedastic")),
    ],
)
def test_every_data_model_has_a_report(kind: str, store_of: Callable[[str], Path], tmp_path: Path) -> None:
    page = Page(api.report(store_of(kind), out=tmp_path / "r.html", data=table(kind, 9, 5), **QUIET))
    assert page.sections == [*SECTIONS, "traces", "repeat"]
    assert "fit: cannot tell" in page.text  # two chains are too few to judge
    assert "9 held-out cases" in page.text and "has learnt from these cases" not in page.text
    words = {"class": "P(low <)", "binary": "P(y = yes)", "survival": "Kaplan and Meier's estimate"}
    assert words.get(kind, "central interval") in page.text


@pytest.fixture(scope="module")
def drawn(store_of: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with its pictures."""
    return api.report(store_of("real"), out=tmp_path_factory.mktemp("drawn") / "report.html", **QUIET)


def test_the_page_needs_nothing_else_and_escapes_names(drawn: Path, store_of: Callable[[str], Path]) -> None:
    page = Page(drawn)
    assert page.scripts == 0 and page.unlabelled == 0
    assert html.escape(HOSTILE) in page.source
    in_pictures = re.findall(r"<text[^>]*>([^<]*)</text>", page.source)
    assert HOSTILE in map(html.unescape, in_pictures)
    assert [address for address in page.addresses if address and not address.startswith("data:")] == []
    assert not re.search(r"@import|url\((?!#)", page.source)
    assert {link.removeprefix("#") for link in page.links if link} <= set(page.names)
    assert len(page.names) == len(set(page.names)), "two parts have one name"
    assert "y at the training cases, each predicted without itself" in page.text
    assert "has learnt from these cases" in page.text and "24 training cases" in page.text
    assert Store.open(store_of("real")).data.hash in page.text and 'kind = "real"' in page.text
    assert [file.name for file in drawn.parent.iterdir()] == ["report.html"]


BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((path for path in map(shutil.which, BROWSERS) if path), None)


OWN = "not an origin"  # the initiator of a request of the browser itself
in_browser = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine")


def browse(page: Path, folder: Path) -> tuple[str, list[str], list[str]]:
    """Open a page in a browser: its elements, messages of its console, addresses that it asks for."""
    assert BROWSER is not None
    flags = "headless no-sandbox disable-gpu disable-background-networking disable-component-update"
    flags += " disable-sync no-first-run enable-logging=stderr dump-dom"
    log = folder / "net.json"
    files = (f"--user-data-dir={folder / 'profile'}", f"--log-net-log={log}")
    command = [BROWSER, *(f"--{flag}" for flag in flags.split()), *files, page.as_uri()]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    events = [event.get("params", {}) for event in json.loads(log.read_text())["events"]]
    asked = [event["url"] for event in events if "url" in event and event.get("initiator", OWN) != OWN]
    messages = [line for line in result.stderr.splitlines() if "CONSOLE" in line]
    return result.stdout, messages, [url for url in asked if not url.startswith(("file:", "data:"))]


@in_browser
def test_a_browser_shows_the_page_without_errors_or_requests(drawn: Path, tmp_path: Path) -> None:
    elements, messages, asked = browse(drawn, tmp_path)
    assert (messages, asked) == ([], [])
    shown = Page(drawn, elements)
    assert shown.sections == [*SECTIONS, "traces", "repeat"]
    assert HOSTILE in shown.text and shown.scripts == 0
    assert elements.count("<svg ") == drawn.read_text().count("<svg ") > 10


def test_tables_scroll_in_boxes_of_their_own_and_pictures_shrink(drawn: Path) -> None:
    source = drawn.read_text()
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in source
    tables = len(re.findall("<table[ >]", source))
    assert tables > 5 and len(re.findall(r'<div class="table"><table[ >]', source)) == tables
    style = (
        ".table { overflow-x: auto;",
        "pre { overflow-x: auto;",
        "figure svg { display: block; width: 100%;",
    )
    for rule in style:
        assert rule in source


# A frame as wide as a phone; the script says how wide its content is, and what is too wide outside a box that
# scrolls.
PHONE = """<!doctype html><body style="margin:0">
<iframe style="border:0;width:400px;height:9000px" srcdoc="{page}"></iframe><pre></pre><script>
const frame = document.querySelector('iframe');
frame.onload = () => {{
  const wide = [], root = frame.contentDocument;
  const scrolls = (e) => e.closest('svg') || ['auto', 'scroll'].includes(getComputedStyle(e).overflowX);
  for (const element of root.body.querySelectorAll('*')) {{
    let parent = element.parentElement;
    while (parent && !scrolls(parent)) parent = parent.parentElement;
    const end = element.getBoundingClientRect().right;
    if (!parent && end > root.documentElement.clientWidth + 1) wide.push(element.tagName);
  }}
  const widths = [root.documentElement.scrollWidth, root.documentElement.clientWidth];
  document.querySelector('pre').textContent = JSON.stringify([...widths, wide]);
}};
</script>"""


@in_browser
def test_a_page_on_a_phone_does_not_scroll_sideways(drawn: Path, tmp_path: Path) -> None:
    page = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", drawn.read_text())
    frame = tmp_path / "frame.html"
    frame.write_text(PHONE.format(page=html.escape(page)))
    elements, _, _ = browse(frame, tmp_path)
    (measured,) = re.findall("<pre>(.*)</pre><script>", elements)
    scroll_width, width, too_wide = json.loads(measured)
    assert 350 < width <= 400 and scroll_width == width and too_wide == []


@in_browser
@pytest.mark.long
def test_a_page_that_asks_for_something_is_found(tmp_path: Path) -> None:
    """The control of the test above; nothing answers at port 9."""
    page = tmp_path / "asks.html"
    page.write_text('<img src="http://127.0.0.1:9/picture.png"><script>console.log("message")</script>')
    _, messages, asked = browse(page, tmp_path)
    assert len(messages) == 1 and "http://127.0.0.1:9/picture.png" in asked


@pytest.mark.usefixtures("undrawn")
def test_several_runs_are_side_by_side(store_of: Callable[[str], Path], tmp_path: Path) -> None:
    other = tmp_path / "other.zarr"
    api.sample(keys("real", seed=2, chains=3), other, data=table("real"), **HERE)
    page = Page(api.report([store_of("real"), other], out=tmp_path / "both.html", **QUIET))
    assert "The settings that differ" in page.text and "chains23" in page.text and "seed12" in page.text
    assert "difference from the first, case by case" in page.text and "±" in page.text
    assert page.text.count("Predictions: ") == 0 and page.text.count("predictions: ") == 2
    with pytest.raises(ConfigError, match="the same store is given twice"):
        api.report([other, other], out=tmp_path / "both.html", **QUIET)


@pytest.mark.usefixtures("undrawn")
def test_a_page_uses_as_many_draws_as_are_asked_for(store_of: Callable[[str], Path], tmp_path: Path) -> None:
    def page(**options: Any) -> str:
        return Page(api.report(store_of("real"), out=tmp_path / "r.html", **options, **QUIET)).text

    total = committed(Store.open(store_of("real"))).total
    assert f"from 4 of {total:,} draws" in page(draws=4)
    assert f"from {total:,} of {total:,} draws" in page(max_mcse=1e-6)
    for wrong, words in (
        ({"draws": 0}, "draws: must be at least 1"),
        ({"max_mcse": -1.0}, "max_mcse: must be above 0"),
        ({"draws": 4, "max_mcse": 0.1}, "draws: give either draws or max_mcse"),
    ):
        with pytest.raises(ConfigError, match=words):
            page(**wrong)


@pytest.mark.usefixtures("undrawn")
def test_draws_of_other_kinds_have_no_verdict(tmp_path: Path) -> None:
    spec = keys("real", network={"hidden": [{"units": 2, "activation": "tanh"}]})
    api.prior(spec, tmp_path / "prior.zarr", draws=6, data=table("real"))
    page = Page(api.report(tmp_path / "prior.zarr", out=tmp_path / "prior.html", **QUIET))
    assert "draws from the prior" in page.text and "traces" not in page.sections
    few = table("binary", 4)
    api.reject(keys("binary"), tmp_path / "exact.zarr", draws=4, data=few, progress=False)
    page = Page(api.report(tmp_path / "exact.zarr", out=tmp_path / "exact.html", **QUIET))
    assert "exact and independent draws" in page.text and "traces" not in page.sections


@pytest.mark.usefixtures("undrawn")
def test_an_unfinished_run_says_how_far_it_is(tmp_path: Path) -> None:
    operations = keys("real")["phase"][0]["operations"]
    phases = [
        {"iterations": 4, "keep": False, "operations": operations},
        {"iterations": 8, "operations": operations},
    ]
    store = make_store(tmp_path / "run.zarr", small_spec(tmp_path, phase=phases, chains=2))
    sampler = Sampler(store)
    list(sampler.run_block(0))
    page = Page(api.report(store.path, out=tmp_path / "r.html", **QUIET))
    assert "NOT FROM THE POSTERIOR" in page.text and "iteration 4 of 12" in page.text
    list(sampler.run_block(0))
    page = Page(api.report(store.path, out=tmp_path / "r.html", **QUIET))
    assert "The run is not finished: iteration 8 of 12." in page.text


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("report.pdf", "out: must end in .html"),
        ("run.zarr/report.html", "lies inside the store"),
        ("missing/report.html", "there is no folder"),
        ("folder.html", "is a folder"),
    ],
)
def test_a_wrong_output_is_refused_before_anything_is_computed(
    out: str, words: str, store_of: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "run.zarr").symlink_to(store_of("real"))
    with pytest.raises(ConfigError, match=words):
        api.report(tmp_path / "run.zarr", out=tmp_path / out, **QUIET)


def test_the_report_does_not_replace_its_input(store_of: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "cases.html").write_text("x,y\n1,2\n")
    with pytest.raises(ConfigError, match="is the input .* itself"):
        api.report(store_of("real"), out=tmp_path / "cases.html", data=tmp_path / "cases.html", **QUIET)


def test_cases_without_targets_are_refused(store_of: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="data: the table has no targets"):
        cases = table("real").drop(columns="y")
        api.report(store_of("real"), out=tmp_path / "r.html", data=cases, **QUIET)
    assert list(tmp_path.iterdir()) == []


def test_traces_of_many_chains_show_some_of_them(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, chains=80, chains_per_batch=80)
    api.sample(spec, tmp_path / "run.zarr", **HERE)
    text = api.report(tmp_path / "run.zarr", out=tmp_path / "report.html", **QUIET).read_text()
    assert "draws of 64 of the 80 chains, evenly spaced" in text
