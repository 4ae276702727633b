"""Conversations written by program, each kind in a file of its own. `KINDS` maps a kind to its generator (rng ->
conversation) and its share of the mixture."""

from program_text import arithmetic, basics, code, edits, json_records, lookup, tool_calls

KINDS = {
    "arithmetic": (arithmetic.make, 12),
    "lookup": (lookup.make, 12),
    "basics": (basics.make, 4),
    "code": (code.make, 14),
    "json": (json_records.make, 18),
    "tools": (tool_calls.make, 20),
    "edits": (edits.make, 20),
}
