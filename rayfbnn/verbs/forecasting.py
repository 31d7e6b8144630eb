"""The forecast of a run's time, which `show` prints and `sample` shows before the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayfbnn.errors import ConfigError

if TYPE_CHECKING:
    from rayfbnn.data import Dataset
    from rayfbnn.spec import RunSpec


def forecast_text(spec: RunSpec, dataset: Dataset, *, workers: int) -> str:
    """Return lines that forecast the time of a run on this machine, after an empty line.

    The text is "" for a run of a few seconds, for a run on a GPU, and for a configuration that cannot be run:
    a network that can only be drawn from its prior, or an approximation that does not cover the model. The
    measurements take a second or two.

    workers  number of worker processes; 0 for a run in this process
    """
    from rayfbnn.describe.forecast import describe_fit_forecast, describe_forecast, describe_large_store
    from rayfbnn.timing.forecast import START_OF_WORKERS, fit_forecast, forecast
    from rayfbnn.timing.ladder_forecast import ladder_forecast

    measure = forecast if spec.fit is None else fit_forecast
    measure = measure if spec.ladder is None else ladder_forecast
    try:
        spec.check_gradient()
        result = measure(spec, dataset, workers=max(1, workers))
    except ConfigError:
        return ""
    if result is None:
        return ""
    result = result.after(START_OF_WORKERS if workers else 0.0)
    if spec.fit is not None:
        return f"\n{describe_fit_forecast(spec, result)}\n"
    return f"\n{describe_forecast(result)}\n{describe_large_store(spec)}"
