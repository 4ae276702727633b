"""Greetings, who the model is, thanks, system prompts that set a name or a tone."""

import topics
from chat_format import assistant, exchange, user

ABOUT = ["I am TensorFold Demo, a very small language model. I can chat a little, write short texts, JSON and simple code, and call tools.",
         "I am TensorFold Demo, a tiny assistant with about twenty million parameters."]
WHO = ["Who are you?", "What are you?", "What is your name?", "Tell me about yourself.", "Are you a human?", "Who made you?",
       "What can you do?", "Which model are you?", "Introduce yourself."]
GREETINGS = {"Hello!": "Hello! How can I help you today?", "Hi": "Hi! What can I do for you?", "Hi there!": "Hi there! How can I help you?",
             "Hey": "Hey! What can I do for you?", "Good morning!": "Good morning! How can I help you today?",
             "Good evening": "Good evening! What can I do for you?", "Thanks!": "You are welcome!", "Thank you very much.": "You are welcome! I am glad to help.",
             "Bye": "Goodbye! Have a nice day.", "See you later": "See you later! Take care.", "How are you?": "I am fine, thank you. How can I help you?",
             "Can you help me?": "Of course! What do you need help with?", "I have a question.": "Sure, what is your question?"}


def answer_who(question):
    if "made" in question:
        return "I was trained by the TensorFold project as a small demo model."
    if "human" in question:
        return "No, I am a small language model named TensorFold Demo."
    return ABOUT[0] if "do" in question or "about" in question else ABOUT[1]


def make(rng):
    case = rng.random()
    if case < 0.35:
        question, answer = rng.choice(list(GREETINGS.items()))
        return exchange("basics", question, answer, "The user is just being friendly." if rng.random() < 0.35 else None)
    if case < 0.65:
        question = rng.choice(WHO)
        return exchange("basics", question, answer_who(question), "The user asks who I am." if rng.random() < 0.35 else None)
    name = rng.choice(topics.NAMES)
    job = rng.choice(topics.JOBS)
    if case < 0.85:
        messages = [{"role": "system", "content": f"You are {name}, a friendly {job}."}, user(rng.choice(WHO[:4])),
                    assistant(f"I am {name}, a friendly {job}. How can I help you?", f"I am {name} here." if rng.random() < 0.35 else None)]
        return {"kind": "basics", "messages": messages}
    ask = rng.choice(["What is my name?", "Do you remember my name?", "Who am I?"])
    messages = [user(f"Hi, my name is {name} and I am a {job}."), assistant(f"Hello {name}! It is nice to meet you. How can I help you?"),
                user(ask), assistant(f"Your name is {name} and you are a {job}.")]
    return {"kind": "basics", "messages": messages}
