"""Random JSON schemas for the structured output tests: every keyword that is enforced occurs, and values are small, so that
a random model's replies end within a few hundred tokens."""
import random

WORDS = ["id", "name", "tags", "kind", "value", "count", "ünïcode", "a b", "q\"uote", "日本"]
PATTERNS = ["^[a-c]{1,4}$", "^x[0-9]{2}$", "^(red|green|\"blue\")$", "^a\\.b?$"]
FORMATS = ["date", "uuid", "ipv4", "duration"]


def scalar(rng):
    kind = rng.randrange(9)
    if kind == 0:
        return {"type": "boolean"}
    if kind == 1:
        return {"type": "null"}
    if kind == 2:
        low = rng.randrange(-200, 200)
        return {"type": "integer", "minimum": low, "maximum": low + rng.randrange(0, 300)}
    if kind == 3:
        low = rng.randrange(-50, 50) / 4
        schema = {"type": "number", rng.choice(["minimum", "exclusiveMinimum"]): low}
        return schema | {rng.choice(["maximum", "exclusiveMaximum"]): low + rng.randrange(1, 40) / 8}
    if kind == 4:
        least = rng.randrange(0, 4)
        return {"type": "string", "minLength": least, "maxLength": least + rng.randrange(0, 6)}
    if kind == 5:
        return {"enum": rng.sample(["a", "b", 1, -2.5, None, True, {"k": [1]}, "q\"\\", "日"], rng.randrange(1, 4))}
    if kind == 6:
        return {"const": rng.choice(["fixed", 7, None, False])}
    if kind == 7:
        return {"type": "string", "pattern": rng.choice(PATTERNS)}
    return {"type": "string", "format": rng.choice(FORMATS)}


def array(rng, depth):
    if rng.random() < 0.3:
        prefix = [schema(rng, depth - 1) for _ in range(rng.randrange(1, 3))]
        return {"type": "array", "prefixItems": prefix, "minItems": len(prefix), "items": False}
    least = rng.randrange(0, 2)
    return {"type": "array", "items": schema(rng, depth - 1), "minItems": least, "maxItems": least + rng.randrange(0, 3)}


def dictionary(rng, depth):
    return {"type": "object", "additionalProperties": schema(rng, depth - 1), "propertyNames": {"enum": ["k", "l", "mm"]},
            "maxProperties": rng.randrange(1, 3)}


def record(rng, depth):
    names = rng.sample(WORDS, rng.randrange(1, 4))
    properties = {name: schema(rng, depth - 1) for name in names}
    required = [name for name in names if rng.random() < 0.6]
    result = {"type": "object", "properties": properties, "required": required}
    if rng.random() < 0.5:
        result["additionalProperties"] = False
    return result


def schema(rng, depth):
    if depth == 0 or rng.random() < 0.35:
        return scalar(rng)
    kind = rng.randrange(6)
    if kind <= 1:
        return record(rng, depth)
    if kind == 2:
        return array(rng, depth)
    if kind == 3:
        return {"anyOf": [schema(rng, depth - 1) for _ in range(rng.randrange(1, 4))]}
    if kind == 4:
        return dictionary(rng, depth)
    names = rng.sample(WORDS, 2)
    return {"allOf": [{"type": "object", "properties": {names[0]: scalar(rng)}, "required": [names[0]]},
                      {"properties": {names[1]: scalar(rng)}, "required": [names[1]]}]}


def random_schema(seed):
    rng = random.Random(seed)
    result = schema(rng, 3)
    if rng.random() < 0.25:
        result = {"$defs": {"part": scalar(rng)}, "type": "object",
                  "properties": {"first": {"$ref": "#/$defs/part"}, "second": result, "third": {"$ref": "#/$defs/part"}},
                  "required": ["first", "second"]}
    return result
