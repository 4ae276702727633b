"""Conversations as text: the same bytes as chat_template.jinja renders (check_chat_format.py compares them), but quick enough
for a million conversations. A conversation is {"messages": [...], "tools": [...] or absent, "kind": str}; an assistant
message may have "reasoning_content" and "tool_calls" ([{"name", "arguments"}])."""

import json

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>",
           "<tool_response>", "</tool_response>", "<|mask|>"] + [f"<|reserved_{i}|>" for i in range(6)]
CALL_FORMAT = ("\n</tools>\n\nTo call one, answer only with:\n<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n"
               "</function>\n</tool_call>")


def to_json(value):
    return json.dumps(value, ensure_ascii=False)


def system_block(first, tools):
    if not first and not tools:
        return ""
    text = first["content"].strip() if first else ""
    if tools:
        text += ("\n\n" if first else "") + "# Tools\n\nYou can call these functions:\n<tools>"
        text += "".join("\n" + to_json(tool) for tool in tools) + CALL_FORMAT
    return f"<|im_start|>system\n{text}<|im_end|>\n"


def call_text(call):
    call = call.get("function", call)
    text = f"<tool_call>\n<function={call['name']}>\n"
    for key, value in call["arguments"].items():
        text += f"<parameter={key}>\n{value if isinstance(value, str) else to_json(value)}\n</parameter>\n"
    return text + "</function>\n</tool_call>"


def assistant_block(message):
    thought = message.get("reasoning_content")
    content = (message.get("content") or "").strip()
    calls = "\n".join(call_text(call) for call in message.get("tool_calls") or [])
    gap = "\n\n" if content and calls else ""
    return f"<|im_start|>assistant\n<think>\n{thought.strip() if thought else ''}\n</think>\n\n{content}{gap}{calls}<|im_end|>\n"


def render(messages, tools=None, generate=False, thinking=True):
    first = messages[0] if messages and messages[0]["role"] == "system" else None
    parts = [system_block(first, tools)]
    for i, message in enumerate(messages[1:] if first else messages):
        role = message["role"]
        if role == "user":
            parts.append(f"<|im_start|>user\n{message['content']}<|im_end|>\n")
        elif role == "assistant":
            parts.append(assistant_block(message))
        else:
            body = messages[1:] if first else messages
            before = "" if i and body[i - 1]["role"] == "tool" else "<|im_start|>user"
            after = "" if i + 1 < len(body) and body[i + 1]["role"] == "tool" else "<|im_end|>\n"
            parts.append(f"{before}\n<tool_response>\n{message['content']}\n</tool_response>{after}")
    if generate:
        parts.append("<|im_start|>assistant\n<think>\n" + ("" if thinking else "\n</think>\n\n"))
    return "".join(parts)


def user(content):
    return {"role": "user", "content": content}


def assistant(content, thought=None, calls=None):
    message = {"role": "assistant", "content": content}
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = calls
    return message


def exchange(kind, question, answer, thought=None):
    return {"kind": kind, "messages": [user(question), assistant(answer, thought)]}
