"""Short names for the types of pytest's own fixtures."""

import pytest

Output = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
