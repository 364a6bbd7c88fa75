"""The checks of values catch stores that are wrong about them."""

from __future__ import annotations

import pytest
from anyio.lowlevel import checkpoint

from arendezvous.store.memory import MemoryStore
from arendezvous.testing.checks import values
from tests.support import VIRTUAL

from .support import complaints


class TextValues(MemoryStore):
    async def get(self, key: str) -> bytes:
        return (await super().get(key)).decode("utf-8", "replace").encode()


class ForgetsEmpty(MemoryStore):
    async def get(self, key: str) -> bytes:
        return (await super().get(key)) or b"None"

    async def set(self, key: str, value: bytes) -> None:
        await super().set(key, value.rstrip(b"\0"))


class SwappedArguments(MemoryStore):
    async def compare_and_swap(self, key: str, expected: bytes, desired: bytes) -> tuple[bool, bytes]:
        return await super().compare_and_swap(key, desired, expected)


class CreatesOnMismatch(MemoryStore):
    async def compare_and_swap(self, key: str, expected: bytes, desired: bytes) -> tuple[bool, bytes]:
        if await self.peek(key) is None:
            await self.set(key, desired)
            return True, desired
        return await super().compare_and_swap(key, expected, desired)


class EmptyIsMissing(MemoryStore):
    async def compare_and_swap(self, key: str, expected: bytes, desired: bytes) -> tuple[bool, bytes]:
        if await self.peek(key) == b"" and not expected:
            return False, b""
        return await super().compare_and_swap(key, expected, desired)


class SwapsInTwoSteps(MemoryStore):
    async def compare_and_swap(self, key: str, expected: bytes, desired: bytes) -> tuple[bool, bytes]:
        stored = await self.peek(key)
        if (stored or b"") != expected or (stored is None and expected):
            return False, stored or b""
        await checkpoint()
        await self.set(key, desired)
        return True, desired


class HidesFailure(MemoryStore):
    async def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        return (await self.compare_and_swap(key, expected, desired))[1]


class CountsApart(MemoryStore):
    async def add(self, key: str, amount: int) -> int:
        return await super().add(f"counter {key}", amount)


class AddsInTwoSteps(MemoryStore):
    async def add(self, key: str, amount: int) -> int:
        total = int(await self.peek(key) or b"0") + amount
        await self.set(key, b"%d" % total)
        return total


class ResetsNonNumbers(MemoryStore):
    async def add(self, key: str, amount: int) -> int:
        try:
            return await super().add(key, amount)
        except ValueError:
            await self.set(key, b"%d" % amount)
            raise


class AppendsInTwoSteps(MemoryStore):
    async def append(self, key: str, value: bytes) -> None:
        await self.set(key, (await self.peek(key) or b"") + value)


class ChecksAny(MemoryStore):
    async def check(self, keys: list[str]) -> bool:  # type: ignore[override]
        return any([await super(ChecksAny, self).check([key]) for key in keys])


class DeletesSilently(MemoryStore):
    async def delete_key(self, key: str) -> bool:
        await super().delete_key(key)
        return True


class CountsTombstones(MemoryStore):
    deleted = 0

    async def delete_key(self, key: str) -> bool:
        gone = await super().delete_key(key)
        self.deleted += gone
        return gone

    async def num_keys(self) -> int:
        return await super().num_keys() + self.deleted


class SortsMultiGet(MemoryStore):
    async def multi_get(self, keys: list[str]) -> list[bytes]:  # type: ignore[override]
        return await super().multi_get(sorted(keys))


class WritesBeforeLooking(MemoryStore):
    async def multi_set(self, keys: list[str], values: list[bytes]) -> None:  # type: ignore[override]
        for key, value in zip(keys, values, strict=False):
            await self.set(key, value)
        await super().multi_set(keys, values)


class MinusIsAMarker(MemoryStore):
    async def delete_key(self, key: str) -> bool:
        await super().delete_key(f"-{key}")
        return await super().delete_key(key)


class StripsSlashes(MemoryStore):
    async def set(self, key: str, value: bytes) -> None:
        await super().set(key.lstrip("/"), value)


class TakesText(MemoryStore):
    async def set(self, key: str, value: bytes) -> None:
        await super().set(key, value.encode() if isinstance(value, str) else value)


@VIRTUAL
@pytest.mark.parametrize(
    ("broken", "caught"),
    [
        (TextValues, {"exact_bytes", "compare_and_swap_bytes", "append_values"}),
        (ForgetsEmpty, {"exact_bytes"}),
        (SwappedArguments, {"compare_and_swap_table", "compare_and_swap_bytes"}),
        (CreatesOnMismatch, {"compare_and_swap_table", "delete_keys"}),
        (EmptyIsMissing, {"compare_and_swap_table"}),
        (SwapsInTwoSteps, {"compare_and_swap_races"}),
        (HidesFailure, {"compare_set_table"}),
        (CountsApart, {"add_and_others"}),
        (AddsInTwoSteps, {"add_races"}),
        (ResetsNonNumbers, {"add_no_number"}),
        (AppendsInTwoSteps, {"append_values"}),
        (ChecksAny, {"check_keys"}),
        (DeletesSilently, {"delete_keys", "odd_keys"}),
        (CountsTombstones, {"count_keys", "odd_keys"}),
        (SortsMultiGet, {"multi_values"}),
        (WritesBeforeLooking, {"multi_set_lengths"}),
        (MinusIsAMarker, {"odd_keys"}),
        (StripsSlashes, {"odd_keys"}),
        (TakesText, {"wrong_types"}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
async def test_a_store_that_is_wrong_about_values_is_caught(broken: type[MemoryStore], caught: set[str]) -> None:
    assert caught <= set(await complaints(values.CHECKS, broken))


@VIRTUAL
async def test_a_right_store_passes() -> None:
    assert await complaints(values.CHECKS, MemoryStore) == {}
