"""The demo model for the end-to-end tests: where it is, and the requests that the files about it share."""
from conftest import ROOT, RunningServer

DEMO = ROOT / "models/demo"


def demo_server(*flags, model=DEMO):
    return RunningServer("--context", "2048", "--parallel", "4", *flags, model=model)


def chat(client, content, thinking=False, tokens=160, temperature=0.0, seed=11, draft=True, stream=False, **more):
    """`content`: the user's words, or a list of messages."""
    messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
    extra = {"chat_template_kwargs": {"enable_thinking": thinking}, **more.pop("extra_body", {})}
    if not draft:
        extra["draft"] = False
    return client.chat.completions.create(model="tiny", messages=messages, temperature=temperature, seed=seed, max_tokens=tokens,
                                          stream=stream, extra_body=extra, **more)


def runtime(reply):
    return reply.model_extra["tensorfold"]


def sha(reply):
    return runtime(reply)["token_sha"]


def text_of(reply):
    return reply.choices[0].message.content


def cached(reply):
    return reply.usage.prompt_tokens_details.cached_tokens
