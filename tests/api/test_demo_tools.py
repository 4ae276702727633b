"""Tools with the OpenAI SDK on the demo model, which was trained to call them: whole and streamed, chosen, forbidden and
required, with results, drafts and neighbours."""
import concurrent.futures
import json

import jsonschema
import openai
import pytest

from demo import chat, demo_server, runtime, sha, text_of


def tool(name, description, required=None, **properties):
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {
        "type": "object", "properties": properties, "required": list(properties) if required is None else required}}}


WEATHER = tool("get_weather", "Get the current weather of a city.", city={"type": "string"})
LIGHT = tool("set_light", "Switch a light.", room={"type": "string"}, on={"type": "boolean"},
             brightness={"type": "integer", "description": "0 to 100"})
CLOCK = tool("get_time", "Get the local time of a city.", city={"type": "string", "description": "Name of the city"})
TOOLS = [WEATHER, LIGHT, CLOCK]


@pytest.fixture(scope="module")
def client():
    running = demo_server()
    yield running.client()
    assert running.stop() == 0


def calls_of(reply):
    return [(call.function.name, json.loads(call.function.arguments)) for call in reply.choices[0].message.tool_calls or []]


def streamed_calls(chunks):
    """Names and argument texts as a client puts them together; checks heads, roles and the finish reason."""
    calls, content, roles, finish = [], "", 0, None
    for chunk in chunks:
        if not chunk.choices:
            continue
        delta = chunk.choices[0].delta
        roles += delta.role is not None
        content += delta.content or ""
        finish = chunk.choices[0].finish_reason or finish
        for call in delta.tool_calls or []:
            if call.id:
                assert call.index == len(calls) and call.type == "function" and call.function.arguments == ""
                calls.append([call.function.name, ""])
            else:
                calls[call.index][1] += call.function.arguments
    assert roles == 1
    return [(name, json.loads(arguments)) for name, arguments in calls], content, finish


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("words, expected", [
    ("What is the weather in Paris?", ("get_weather", {"city": "Paris"})),
    ("Set the kitchen light to 40 percent.", ("set_light", {"room": "kitchen", "on": True, "brightness": 40})),
    ("Turn off the light in the hall.", ("set_light", {"room": "hall", "on": False, "brightness": 0})),
])
def test_calls_whole_and_streamed(client, thinking, words, expected):
    reply = chat(client, words, thinking=thinking, tools=TOOLS)
    assert calls_of(reply) == [expected]
    assert reply.choices[0].finish_reason == "tool_calls"
    assert reply.choices[0].message.content is None
    assert reply.choices[0].message.tool_calls[0].id.startswith("call_")
    assert sha(reply) == sha(chat(client, words, thinking=thinking, tools=TOOLS, draft=False))
    calls, content, finish = streamed_calls(chat(client, words, thinking=thinking, tools=TOOLS, stream=True))
    assert (calls, content, finish) == ([expected], "", "tool_calls")


def test_results_come_back(client):
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    first = chat(client, messages, tools=TOOLS)
    messages.append(first.choices[0].message.model_dump(exclude_none=True))
    messages.append({"role": "tool", "tool_call_id": first.choices[0].message.tool_calls[0].id,
                     "content": json.dumps({"temperature": 21, "condition": "sunny"})})
    second = chat(client, messages, tools=TOOLS)
    assert second.choices[0].finish_reason == "stop"
    assert second.choices[0].message.tool_calls is None
    assert "21" in text_of(second) and "sunny" in text_of(second)
    # The reply's own tokens, rendered again, are the cached ones.
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens


def test_a_question_that_needs_no_tool_is_answered(client):
    reply = chat(client, "What is the capital of France?", tools=[LIGHT])
    assert reply.choices[0].finish_reason in ("stop", "tool_calls")  # the model's own choice, never an error
    none = chat(client, "What is the weather in Paris?", tools=TOOLS, tool_choice="none")
    assert none.choices[0].message.tool_calls is None and text_of(none)
    # Hidden tools leave the prompt of a request without any.
    assert sha(none) == sha(chat(client, "What is the weather in Paris?"))


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_required(client, thinking, temperature):
    by_name = {each["function"]["name"]: each["function"]["parameters"] for each in TOOLS}
    for seed, words in enumerate(("Hello, how are you?", "Tell me a story.", "What is 2 + 2?")):
        fields = {"tools": TOOLS, "tool_choice": "required", "seed": seed, "temperature": temperature, "thinking": thinking, "tokens": 400}
        reply = chat(client, words, **fields)
        assert reply.choices[0].finish_reason == "tool_calls"
        for name, arguments in calls_of(reply):
            jsonschema.validate(arguments, by_name[name])
        assert calls_of(reply)
        assert sha(reply) == sha(chat(client, words, draft=False, **fields))


def test_named(client):
    for name in ("get_weather", "set_light", "get_time"):
        reply = chat(client, "Tell me a story.", tools=TOOLS, tool_choice={"type": "function", "function": {"name": name}},
                     parallel_tool_calls=False)
        assert [call[0] for call in calls_of(reply)] == [name]


def test_one_call_where_more_are_forbidden(client):
    for seed in range(4):
        reply = chat(client, "Weather in Paris and Rome, please.", tools=TOOLS, tool_choice="required", temperature=1.0, seed=seed,
                     parallel_tool_calls=False, tokens=400)
        assert len(calls_of(reply)) == 1


def test_optional_and_odd_schemas_hold_too(client):
    odd = tool("order", "Order food.", required=["dish"], dish={"type": "string", "enum": ["soup", "pie"]},
               count={"type": "integer", "minimum": 1, "maximum": 9}, notes={"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 2})
    for seed in range(6):
        reply = chat(client, "I am hungry.", tools=[odd], tool_choice="required", temperature=1.0, seed=seed, tokens=400,
                     parallel_tool_calls=False)
        (name, arguments), = calls_of(reply)
        assert name == "order"
        jsonschema.validate(arguments, odd["function"]["parameters"])


def test_neighbours_change_no_call(client):
    words = ["What is the weather in Paris?", "Set the kitchen light to 40 percent.", "What time is it in Rome?", "Hello!"]
    alone = [sha(chat(client, each, tools=TOOLS)) for each in words]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda each: sha(chat(client, each, tools=TOOLS)), words * 2))
    assert together == alone * 2


@pytest.mark.parametrize("fields, param", [
    ({"tools": [{"type": "web_search"}]}, "tools"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nothing"}}}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": "required", "extra_body": {"guided_choice": ["a"]}}, "tool_choice"),
])
def test_refused_by_name(client, fields, param):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, "Hello!", **fields)
    assert caught.value.body["param"] == param


def test_tokenize_counts_the_tools(client):
    import urllib.request

    def count(body):
        request = urllib.request.Request(str(client.base_url).removesuffix("/v1/") + "/v1/tokenize", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        return json.loads(urllib.request.urlopen(request, timeout=30).read())["count"]

    messages = [{"role": "user", "content": "Hello!"}]
    switch = {"chat_template_kwargs": {"enable_thinking": False}}
    with_tools = count({"messages": messages, "tools": TOOLS, **switch})
    assert with_tools == chat(client, "Hello!", tools=TOOLS, tokens=1).usage.prompt_tokens
    assert with_tools > count({"messages": messages, **switch}) + 50
