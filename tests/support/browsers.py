"""A web browser that notes what it is to show."""

from __future__ import annotations


class Opened(list[str]):
    """The addresses that were opened."""

    def show(self, address: str) -> bool:
        self.append(address)
        return True
