"""`docs/acls.md`, made of the table of rights: `python -m tests.support.acl_table > docs/acls.md`."""

from __future__ import annotations

import sys

from headrace.topics.rights import PARTS, TOPICS, Part

HEAD = """# The smallest rights on Kafka

<!-- Made by `python -m tests.support.acl_table`; tests hold it to the code, and the code to a real authorizer. -->

What each part may be allowed at least, and no more. Topics are named here as in `topics.yaml`; groups and transactional ids begin with
HEADRACE_NAMESPACE (`headrace`). READ, WRITE and ALTER include DESCRIBE, ALTER_CONFIGS includes DESCRIBE_CONFIGS. Let every part that runs alone have a user of its own; `headrace worker all`
needs what the three lanes need together. `headrace topics acls main --user NAME` prints the same as arguments of Kafka's own
`kafka-acls.sh`, under the names of your configuration.

A worker asks the broker at its start what it may do, and ends with code 2 and a line for each right that is missing, before it reads
anything. So does `headrace config check --connect`. Of transactional ids nobody can ask: there the first use fails, with code 1.

Who may write to the retry topic is trusted: what stands there is not checked for being one of ours. The timing wheels' topic is Headrace's
alone. Kafka's client asks for the coordinator of a group even where a reader is in none (`headrace.scan`, `headrace.open`,
`headrace.results`): the broker's log may show DESCRIBE on these refused, which does no harm.

"""


def table() -> str:
    """The page."""
    head = f"| part | {' | '.join(f'topic {role}' for role in TOPICS)} | groups | transactional ids |\n|---|{'---|' * (len(TOPICS) + 2)}\n"
    return HEAD + head + "".join(_row(part) for part in PARTS.values())


def _row(part: Part) -> str:
    cells = [part.topics.get(role, "").replace(" ", "<br>") for role in TOPICS]
    groups = "<br>".join(f"`….{lane}`: {operations.replace(' ', ', ')}" for lane, operations in part.groups.items())
    ids = "<br>".join(f"`….{name}.*`: WRITE" for name in part.transactions)
    return f"| {part.what} | {' | '.join(cells)} | {groups} | {ids} |\n"


if __name__ == "__main__":
    sys.stdout.write(table())
