from __future__ import annotations

import pytest

from cuplace import errors
from cuplace.placement.device import check_device, is_device
from tests.placement.pretend import DEVICES


def test_a_device_is_known_by_its_attributes():
    assert is_device(DEVICES[0])
    assert not any(map(is_device, [0, "cpu", None, DEVICES, object()]))


@pytest.mark.parametrize("foreign", [0, "cpu:0", None, ["device"]])
def test_foreign_objects_are_named(foreign):
    with pytest.raises(errors.ForeignDeviceError, match="Mesh takes devices, got") as caught:
        check_device(foreign, "Mesh")
    assert isinstance(caught.value, TypeError)
    assert repr(foreign) in str(caught.value)
    assert "cuplace.devices()" in str(caught.value)
