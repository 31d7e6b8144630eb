"""The tests of a device, by the stand-in for CuPy: what passes here has not passed on a device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.kernels.test_on_device import (  # noqa: F401, collected here without the mark gpu
    test_a_start_that_is_not_finite_is_told_with_the_results,
    test_a_trajectory_beyond_the_chip_without_what_is_integrated_out,
    test_a_trajectory_is_that_of_the_plain_code,
    test_a_trajectory_without_what_is_integrated_out,
    test_an_iteration_of_hybrid_marginal,
    test_copies_are_of_what_was_there_when_they_began,
    test_energies_of_products_are_not_in_tf32,
    test_programs_are_compiled_once,
    test_the_devices_random_numbers_are_the_hosts,
    test_the_same_bits_every_time_and_in_every_batch,
    test_trajectories_return_with_the_fast_functions,
)
from tests.model.test_device import (  # noqa: F401
    test_device_and_host_agree,
    test_device_and_host_agree_on_data_models,
)
from tests.support.shim.compiled import needs_gxx
from tests.support.standin_cupy.install import installed

pytestmark = [needs_gxx, pytest.mark.long]


@pytest.fixture(autouse=True)
def cupy() -> Iterator[Any]:
    with installed() as module:
        yield module
