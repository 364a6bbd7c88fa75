"""The book of leases."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from arendezvous.store.leases import LeaseBook
from arendezvous.store.table import Table


def test_refreshing_for_ever_does_not_grow_the_book() -> None:
    table = Table()
    for second in range(10_000):
        table.lease_set("l", "o", 3.0, b"k", b"v", now=float(second))
        if second % 3 == 0:
            table.detach("o", now=second + 0.1)
        table.next_expiry()
    assert len(table._leases._heap) < 100


@settings(max_examples=200)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["set", "detach", "attach", "close", "tick"]), st.integers(0, 3), st.integers(0, 1)),
        max_size=40,
    )
)
def test_the_book_agrees_with_a_dumb_twin(steps: list[tuple[str, int, int]]) -> None:
    table = Table(grace=1.0)
    twin: dict[int, tuple[float, float]] = {}  # lease -> (deadline, ttl)
    attached: dict[int, bool] = {}
    now = 0.0
    for step, number, owner in steps:
        lease = number * 2 + owner
        if step == "set":
            table.lease_set(lease, owner, 2.0 + number, b"%d" % lease, b"", now)
            twin[lease], attached[lease] = (now + 2.0 + number, 2.0 + number), True
        elif step == "detach":
            table.detach(owner, now)
            for other in twin:
                if other % 2 == owner and attached[other]:
                    twin[other] = (min(twin[other][0], now + 1.0), twin[other][1])
                    attached[other] = False
        elif step == "attach":
            table.attach(owner, now)
            for other in twin:
                if other % 2 == owner:
                    twin[other], attached[other] = (now + twin[other][1], twin[other][1]), True
        elif step == "close":
            table.lease_close(lease)
            twin.pop(lease, None)
        else:
            now += 0.5
            table.expire(now)
            twin = {other: state for other, state in twin.items() if state[0] > now}
        assert table.next_expiry() == min((deadline for deadline, _ in twin.values()), default=math.inf)
        assert {key for key, _ in table.scan(b"")} == {b"%d" % other for other in twin}


def test_a_lease_belongs_to_the_owner_that_refreshed_it_last() -> None:
    book = LeaseBook(grace=1.0)
    book.refresh("l", "old", 3.0, 0.0)
    book.refresh("l", "new", 3.0, 0.5)
    assert book.detach("old", 1.0) == 0
    assert book.next_expiry() == 3.5
    assert book.detach("new", 1.0) == 1
    assert book.next_expiry() == 2.0
    assert [entry.name for entry in book.expired(2.0)] == ["l"]
    assert len(book) == 0
    assert book.close("l") is None
