"""Prompts for the teacher: topics x forms, sampled by a seed. Each carries what a short thought about it says, so that the
same answer can be shown after a think block."""

import argparse
import json
import random

import topics as t


def pick(rng, *lists):
    return rng.choice(rng.choice(lists))


def article(word):
    return ("an " if word[0] in "aeiou" else "a ") + word


LENGTHS = ["in one sentence", "in two sentences", "in two or three sentences", "briefly", "in a few sentences",
           "in simple words", "in one short paragraph", "for a child", "for a beginner"]


def explain(rng):
    topic = rng.choice([rng.choice(t.SCIENCE), rng.choice(t.COMPUTING), rng.choice(t.IDEAS), article(rng.choice(t.THINGS))])
    length = rng.choice(LENGTHS)
    form = rng.choice(["Explain {0} {1}.", "What is {0}? Answer {1}.", "Describe {0} {1}.", "Tell me about {0} {1}.",
                       "Can you explain {0} {1}?", "I want to learn about {0}. Explain it {1}.", "Define {0} {1}.",
                       "Please explain {1} what {0} is.", "Give me a short explanation of {0}, {1}."])
    return form.format(topic, length), f"The user wants an explanation of {topic}, {length}."


def animals(rng):
    animal = rng.choice(t.ANIMALS)
    form = rng.choice(["What does {0} eat? Answer in one sentence.", "Where does {0} live? Answer in one or two sentences.",
                       "Tell me one interesting fact about {0}.", "Describe {0} in two sentences.",
                       "How does {0} take care of its young? Keep it short.", "What sound does {0} make?",
                       "Is {0} a good pet? Answer briefly.", "How long does {0} usually live?",
                       "Why do people like {0}? Answer in two sentences.", "Write three facts about {0} as a list."])
    return form.format(article(animal)), f"The user asks about {article(animal)}."


def foods(rng):
    food, other = rng.choice(t.FOODS), rng.choice(t.FOODS)
    form = rng.choice(["How do I store {0}? Answer in one or two sentences.", "Is {0} healthy? Answer briefly.",
                       "Give me a very short recipe with {0} and {1}.", "What goes well with {0}?",
                       "Name three dishes that use {0}.", "Describe the taste of {0} in one sentence.",
                       "Write a shopping list for a meal with {0} and {1}.", "How is {0} made? Keep it short.",
                       "Which one is healthier, {0} or {1}? Answer in two sentences.",
                       "Give me two tips for cooking {0}."])
    return form.format(food, other), f"The user asks about {food}."


def stories(rng):
    who = rng.choice([f"{article(rng.choice(t.ADJECTIVES))} {rng.choice(t.ANIMALS)}", f"a {rng.choice(t.JOBS)} named {rng.choice(t.NAMES)}",
                      f"a child named {rng.choice(t.NAMES)}", f"{article(rng.choice(t.ADJECTIVES))} {rng.choice(t.THINGS)}",
                      f"two friends, {rng.choice(t.NAMES)} and {rng.choice(t.NAMES)},"])
    about = rng.choice(t.EVENTS)
    where = rng.choice(t.PLACES)
    form = rng.choice(["Write a very short story about {0} and {1}.", "Tell me a short story about {0} in {2}.",
                       "Write a story of three or four sentences about {0}.", "Write a short bedtime story about {0}.",
                       "Tell a short, happy story about {0} and {1}.", "Write a tiny story that takes place in {2}. It is about {0}.",
                       "Write the beginning of a story about {0}, in three sentences.",
                       "Write a short story about {1} with a surprising end."])
    return form.format(who, about, where), f"The user wants a short story. I keep it simple and give it an end."


def lists(rng):
    count = rng.choice(["three", "four", "five"])
    topic = rng.choice(t.IDEAS)
    form = rng.choice(["List {0} benefits of {1}.", "Give me {0} tips about {1}.", "Name {0} things that you find in {2}.",
                       "List {0} things that a {3} needs at work.", "Give {0} reasons why {1} matters.",
                       "Name {0} animals that live near {2}.", "List {0} ideas for {4}.", "Write {0} short rules for {2}.",
                       "Give me {0} words that describe {1}.", "List {0} questions to ask a {3}.",
                       "Name {0} things to take to {2}.", "Write {0} short titles for a story about {4}."])
    text = form.format(count, topic, rng.choice(t.PLACES), rng.choice(t.JOBS), rng.choice(t.EVENTS))
    return text + rng.choice(["", "", " Keep each one short.", " Use a numbered list.", " One short line each."]), \
        f"The user wants a list of {count} items."


def advice(rng):
    name, feeling = rng.choice(t.NAMES), rng.choice(t.FEELINGS)
    form = rng.choice(["I feel {0} today. What should I do? Answer in two sentences.", "How can I get better at {1}? Be brief.",
                       "My friend {2} is {0}. What can I say?", "How do I prepare for {3}? Give a short answer.",
                       "What is a good gift for a {4}? Give one idea.", "Give me one piece of advice about {1}.",
                       "I am {0} about {3}. Can you help me in two or three sentences?",
                       "What should I wear for {3}? One sentence please.", "Should I try {1}? Answer in two sentences."])
    return form.format(feeling, rng.choice(t.IDEAS), name, rng.choice(t.EVENTS), rng.choice(t.JOBS)), \
        "The user asks for advice. I answer kindly and briefly."


def writing(rng):
    name, other = rng.sample(t.NAMES, 2)
    form = rng.choice(["Write a short poem about {0}.", "Write a two-line rhyme about {0}.", "Write a short email from {1} to {2} about {3}.",
                       "Write a thank-you note from {1} to {2}.", "Write a short message that invites {1} to {3}.",
                       "Write one sentence with the words \"{4}\" and \"{5}\".", "Write a slogan for {6}.",
                       "Describe {6} in two sentences.", "Write a short dialogue between {1} and {2} about {0}.",
                       "Write a short diary entry about {3}.", "Write a product description for {7} in two sentences.",
                       "Write a short description of a {8} named {1}.", "Write a haiku about {0}."])
    topic = rng.choice([rng.choice(t.SCIENCE), rng.choice(t.IDEAS), "a " + rng.choice(t.ANIMALS)])
    return form.format(topic, name, other, rng.choice(t.EVENTS), rng.choice(t.ANIMALS), rng.choice(t.THINGS),
                       rng.choice(t.PLACES), article(rng.choice(t.THINGS)), rng.choice(t.JOBS)), \
        "The user wants a short piece of writing."


def questions(rng):
    form = rng.choice(["Why do we need {0}? Answer in two sentences.", "How does {0} work? Answer in two or three sentences.",
                       "What is the difference between {1} and {2}? Answer in two sentences.", "What does a {3} do? Answer in one sentence.",
                       "Who uses a {1}? Answer briefly.", "What is a {1} used for?", "Why is {4} important? Answer in one sentence.",
                       "What can you see in {5}?", "What happens in {5} at night? Answer in two sentences.",
                       "How do you become a {3}? Be brief.", "Where can I learn more about {0}? Answer in one sentence.",
                       "Is {4} hard? Answer in two sentences.", "What is your favorite thing about {4}?",
                       "What are the parts of a {1}?", "When is a good time for {4}?"])
    return form.format(rng.choice(t.SCIENCE), *rng.sample(t.THINGS, 2),
                       rng.choice(t.JOBS), rng.choice(t.IDEAS), rng.choice(t.PLACES)), \
        "The user asks a question. I answer it directly."


def rewriting(rng):
    name, place, animal, thing = rng.choice(t.NAMES), rng.choice(t.PLACES), rng.choice(t.ANIMALS), rng.choice(t.THINGS)
    adjective, feeling, job = rng.choice(t.ADJECTIVES), rng.choice(t.FEELINGS), rng.choice(t.JOBS)
    sentence = rng.choice([f"{name} went to {place} and saw a {adjective} {animal}.", f"The {animal} looked at the {thing} and was {feeling}.",
                           f"The {job} lost a {thing} in {place}.", f"{name} is {feeling} because the {thing} is broken.",
                           f"Yesterday a {job} gave {name} a {adjective} {thing}.", f"In {place} there was a {adjective} {animal} with a {thing}."])
    form = rng.choice(["Rewrite this sentence in a more exciting way: {0}", "Make this sentence longer: {0}", "Say this in other words: {0}",
                       "Turn this sentence into a question: {0}", "Continue this with one more sentence: {0}",
                       "Rewrite this sentence for a small child: {0}", "What could happen next? {0}", "Make this sentence more polite: {0}"])
    return form.format(sentence), "The user gives a sentence and wants it changed. I answer with the new text."


FORMS = [(explain, 22), (animals, 10), (foods, 9), (stories, 16), (lists, 12), (advice, 9), (writing, 10), (questions, 14),
         (rewriting, 6)]


def sample(count, seed):
    """`count` distinct prompts: dicts with kind, prompt, thought."""
    rng = random.Random(seed)
    kinds, weights = zip(*FORMS)
    seen, found = set(), []
    while len(found) < count:
        kind = rng.choices(kinds, weights)[0]
        prompt, thought = kind(rng)
        if prompt in seen and rng.random() < 0.7:  # a few repeats are other answers to the same question
            continue
        seen.add(prompt)
        found.append({"kind": kind.__name__, "prompt": prompt, "thought": thought})
    return found


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("--count", type=int, default=500000)
    flags.add_argument("--seed", type=int, default=1)
    flags.add_argument("--out", required=True)
    options = flags.parse_args()
    with open(options.out, "w") as out:
        for entry in sample(options.count, options.seed):
            out.write(json.dumps(entry) + "\n")


if __name__ == "__main__":
    main()
