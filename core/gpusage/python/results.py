"""The values that the functions return: each has a line as its repr, and shows itself as a table in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from gpusage.cli import tables
from gpusage.cli.predicting import explain, explain_page, need_table
from gpusage.predictors.explanation import Explanation
from gpusage.reports.pages import html
from gpusage_hooks.types import GpuNeed


class Need(GpuNeed):
    """The need of a workload on a GPU, with all the fields of `gpusage_hooks.types.GpuNeed`."""

    __slots__ = ()

    @classmethod
    def of(cls, need: GpuNeed) -> Need:
        """Return *need* as a value that shows itself."""
        return cls(**{field.name: getattr(need, field.name) for field in fields(need)})

    def __repr__(self) -> str:
        parts = [
            *([f"{self.share_percent} %"] if need_table.are_shared([self]) else []),
            tables.time_text(self.step_time_s),
            tables.memory_text(self.required_bytes),
            f"GPU busy {tables.share_text(self.gpu_utilization)}",
            "fits" if self.fits else "does not fit",
            *([] if self.familiar else ["unfamiliar"]),
        ]
        return f"<Need on {self.gpu}: {', '.join(parts)}>"

    def _repr_html_(self) -> str:
        return _table([self])


class Needs(tuple[Need, ...]):
    """The needs of a workload on several GPUs, in the order of the question."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n".join(map(repr, self)) or "<no needs>"

    def _repr_html_(self) -> str:
        return _table(self)


class Explained(Explanation):
    """Where the time and the memory of a step go, with `gpusage.predictors.explanation`'s fields."""

    __slots__ = ()

    @classmethod
    def of(cls, explanation: Explanation) -> Explained:
        """Return *explanation* as a value that shows itself."""
        return cls(**{field.name: getattr(explanation, field.name) for field in fields(explanation)})

    def __repr__(self) -> str:
        longest = self.classes[0].name if self.classes else "nothing"
        memory = tables.size_text(explain.memory_bytes(self))
        return f"<Explained on {self.gpu}: {tables.seconds_text(self.step_time_s)}, most of it {longest}; {memory}>"

    def _repr_html_(self) -> str:
        return explain_page.section(self)


def _table(needs: Sequence[GpuNeed]) -> str:
    if not needs:
        return "<p>no needs</p>"
    titles = [column.title for column in need_table.columns(needs)]
    return html.table(titles, need_table.rows_of_needs(needs)) + html.notes(need_table.notes(needs))
