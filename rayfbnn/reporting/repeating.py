"""The section on how to repeat the run and what to cite."""

from __future__ import annotations

import html
import platform
import shlex

import numpy as np

from rayfbnn.output import tables
from rayfbnn.reporting.reported_run import ReportedRun
from rayfbnn.version import __version__

_REFERENCES = (
    "Neal, R. M. (1996). Bayesian Learning for Neural Networks. Lecture Notes in Statistics 118. Springer."
    " The models, their priors and hybrid Monte Carlo for them.",
    "Neal, R. M. Software for Flexible Bayesian Modeling (FBM). The family of models and the notation of"
    " priors.",
    "Vehtari, A., Gelman, A., Simpson, D., Carpenter, B. and Bürkner, P.-C. (2021). Rank-normalization,"
    " folding, and localization: an improved R-hat for assessing convergence of MCMC. Bayesian Analysis 16,"
    " 667-718. R-hat and effective sample sizes.",
)


def repeating_section(run: ReportedRun) -> str:
    """Return versions, seed and digests, the commands and the configuration, and what to cite."""
    draws = run.draws
    spec, root = draws.spec, draws.store.root
    facts = tables.pairs(
        {
            "rayfbnn that made the store": root.version,
            "rayfbnn that made this page": __version__,
            "Python, NumPy": f"{platform.python_version()}, {np.__version__}",
            "kernel of the run": root.kernel,
            "arithmetic, device": f"{spec.dtype}, {spec.device}",
            "seed": str(spec.seed),
            "chains": spec.chains,
            "digest of the store": root.identity,
            "digest of the training cases (SHA-256)": draws.data.hash,
        }
    )
    verb = {"exact": "reject", "prior": "prior"}.get(draws.kind, "sample")
    options = ""
    if verb != "sample":
        options = f" --draws {draws.total}"
    elif spec.method is not None:
        options = f" --method {spec.method}"
    name = shlex.quote(draws.path.name)
    cases = "" if spec.data.train else " --data train.csv"  # the training cases were given from memory
    commands = f"rayfbnn {verb} run.toml {name}{cases}{options}\nrayfbnn verify {name}"
    files = "run.toml" if spec.data.train else "run.toml, and the training cases as train.csv"
    words = (
        "The same version produces bitwise identical draws from the same configuration and training cases, on"
        " machines of the same kind, with any number of workers. Save the configuration below as"
        f" {files}, and run:"
    )
    cite = f"rayfbnn, version {root.version}: posterior draws of Bayesian neural networks."
    return "".join(
        [
            facts,
            tables.paragraph(words),
            f"<pre>{html.escape(commands)}</pre>",
            "<details><summary>The configuration, run.toml</summary>",
            f"<pre>{html.escape(spec.to_toml())}</pre></details>",
            tables.paragraph("To cite:"),
            tables.items((cite, *_REFERENCES)),
        ]
    )
