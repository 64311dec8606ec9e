"""The sections of the report, in their order.

Each module has `section(subject) -> Section | None`; None leaves it out. A module whose section needs the encoders also
has `measure(encoder, subject)`, whose results `section` finds in `subject.measured`.
"""

from types import ModuleType

from embrew.report.sections import cost, geometry, map, queries, reproduce, scores

SECTIONS: dict[str, ModuleType] = {
    "scores": scores,
    "queries": queries,
    "cost": cost,
    "geometry": geometry,
    "map": map,
    "reproduce": reproduce,
}
