"""The tests of the machine on its device, without the command line: they need only NumPy, SciPy and CuPy."""

from __future__ import annotations

import pytest

from rayfbnn.selftest.selftest import selftest


@pytest.mark.gpu
def test_selftest_passes_on_the_device() -> None:
    findings = selftest(device="gpu")
    assert findings and not [finding for finding in findings if not finding.ok]
