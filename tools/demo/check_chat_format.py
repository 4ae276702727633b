"""chat_format.render must give the bytes of chat_template.jinja, for every kind of program text, and the edits' answers must
differ from their prompts only where they should (JSON answers parse)."""

import json
import random
from pathlib import Path

from jinja2.sandbox import ImmutableSandboxedEnvironment

import chat_format
from program_text import KINDS


def main():
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = lambda text: (_ for _ in ()).throw(ValueError(text))
    template = environment.from_string((Path(__file__).parent / "chat_template.jinja").read_text())
    rng = random.Random(5)
    for kind, (make, _) in KINDS.items():
        for n in range(200):
            conversation = make(rng)
            messages, tools = conversation["messages"], conversation.get("tools")
            for end in (None, True, False):
                context = {"messages": messages, "tools": tools, "add_generation_prompt": end is not None}
                if end is not None:
                    context["enable_thinking"] = end
                expected = template.render(**context)
                mine = chat_format.render(messages, tools, end is not None, bool(end))
                assert mine == expected, f"{kind}:\n{mine!r}\n{expected!r}"
            if kind == "json":
                json.loads(messages[-1]["content"])
        print(f"{kind}: same bytes; sample:\n{chat_format.render(messages, tools)}")


if __name__ == "__main__":
    main()
