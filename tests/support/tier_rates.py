"""A pytest plugin: loads of KV blocks pay, however slow a disk is beside such small models."""

import pytest

from backend.scheduler.tiers import Tiers


@pytest.fixture
def loads_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tiers, "observe_prefill", lambda *_: None)
