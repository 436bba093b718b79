"""A data set of our own: short business messages -> one JSON object. Made from a seed, the same on every machine.

Only `random.Random.random` is used: its sequence for a seed is the one thing Python promises to keep.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from ftcore.spec.errors import DataError

BUILTIN_PREFIX = "builtin:"
TRAIN_ROWS = 2000
EVAL_ROWS = 100
SEED = 20260117

T = TypeVar("T")
Value = str | int | None
Fields = dict[str, Value]
Maker = Callable[["_Dice"], tuple[str, Fields]]


def _words(text: str) -> list[str]:
    return text.split()


def _phrases(text: str) -> list[str]:
    return text.split(",")


FIRST = _words(
    "Anna Ben Carla David Elif Farah George Hanna Ivan Julia Karim Lena Marco Nadia Omar Petra Quentin Rosa Samir Tina "
    "Ursula Victor Wanda Yusuf Zoe Agnes Boris Chloe Dario Emma Felix Greta Hugo Ines Jonas Katja Liam Maya Nils Olga"
)
LAST = _words(
    "Adler Berg Costa Dietrich Evans Fischer Garcia Hansen Ito Jensen Kowalski Lopez Meyer Novak Okafor Petrov Quinn Rossi Schmidt Tanaka "
    "Ueda Vogel Weber Young Zhang Alvarez Bauer Clarke Dubois Ekman Ferrari Gupta Holm Ivanov Jones Keller Lindgren Moreau Nielsen Ortiz"
)
PRODUCTS = _phrases(
    "desk lamps,office chairs,laptop stands,water bottles,notebooks,printer cartridges,coffee mugs,steel shelves,wall clocks,filing cabinets,"
    "paper trays,whiteboards,USB cables,headsets,monitors,keyboards,safety gloves,garden hoses,paint rollers,tool boxes,bike pumps,tents,"
    "sleeping bags,rain jackets,candles,plant pots,picture frames,cutting boards,glass jars,tea towels"
)
COMPANIES = _phrases(
    "Northwind,Blue Harbor,Alder & Sons,Bright Print,Kestrel Foods,Lumen Energy,Maple Logistics,Orion Tools,Pine Street Bakery,Quarry Stone,"
    "Redwood Paper,Silver Lake Water,Tidal Media,Umbra Design,Vector Steel,Willow Textiles,Yellow Cab Repairs,Zenith Glass,Acorn Books,Beacon Security"
)
SERVICES = _phrases(
    "haircut,dental check,eye test,car inspection,piano lesson,tax meeting,massage,flat viewing,job interview,boiler service,vaccination,fitting"
)
PLACES = _phrases("Room 4,the main office,the clinic,Studio B,the north branch,the annex,the garage,Hall 2")
DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday")
MONTHS = _words("January February March April May June July August September October November December")
NUMBER_WORDS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 8: "eight", 10: "ten", 12: "twelve"}
CURRENCIES = (("EUR", "{} euros"), ("EUR", "EUR {}"), ("USD", "${}"), ("USD", "{} dollars"), ("GBP", "£{}"), ("GBP", "{} pounds"))

ORDERS = (
    "Hello, this is {customer}. Please send us {quantity} {product}{by}.",
    "{customer} here. We need {quantity} {product}{by}, thanks.",
    "Could you deliver {quantity} {product}{by}? Regards, {customer}",
    "New order from {customer}: {quantity} {product}{by}.",
    "Hi, I would like to buy {quantity} {product}{by}. Best wishes, {customer}",
    "We are out of {product}. Please ship {quantity} of them{by}. {customer}",
)
APPOINTMENTS = (
    "{person} booked a {service} on {day} at {time}{at}.",
    "Please put {person} down for a {service}, {day} {time}{at}.",
    "Reminder for {person}: {service} on {day} at {time}{at}.",
    "Hi, it's {person}. Can I have a {service} on {day} at {time}{at}?",
    "The {service} of {person} was moved to {day}, {time}{at}.",
    "On {day} at {time} we expect {person} for a {service}{at}.",
)
INVOICES = (
    "Invoice {number} from {supplier}: {money}{due}.",
    "{supplier} sent invoice {number} over {money}{due}.",
    "Please pay {money} to {supplier} for invoice {number}{due}.",
    "We owe {supplier} {money}, invoice {number}{due}.",
    "Attached is our invoice {number}. The total is {money}{due}. {supplier}",
    "Reminder from {supplier}: invoice {number} over {money} is open{due}.",
)


class _Dice:
    """Draws that depend on the seed alone."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, count: int) -> int:
        return int(self._random.random() * count)

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def maybe(self, share: float, value: str) -> str | None:
        """Draws once either way, so that the sequence doesn't depend on the outcome."""
        return value if self._random.random() < share else None


def _order(dice: _Dice) -> tuple[str, Fields]:
    quantity = dice.pick((2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 24, 25, 30, 36, 40, 50, 60, 75, 100))
    word = dice.maybe(0.5, NUMBER_WORDS.get(quantity, str(quantity)))
    customer, product = f"{dice.pick(FIRST)} {dice.pick(LAST)}", dice.pick(PRODUCTS)
    by = dice.maybe(0.6, dice.pick(DAYS))
    text = dice.pick(ORDERS).format(customer=customer, quantity=word or quantity, product=product, by=f" by {by}" if by else "")
    return text, {"type": "order", "customer": customer, "product": product, "quantity": quantity, "deliver_by": by}


def _appointment(dice: _Dice) -> tuple[str, Fields]:
    person, service, day = f"{dice.pick(FIRST)} {dice.pick(LAST)}", dice.pick(SERVICES), dice.pick(DAYS)
    time = f"{8 + dice.below(11)}:{dice.pick(('00', '15', '30', '45'))}"
    place = dice.maybe(0.5, dice.pick(PLACES))
    text = dice.pick(APPOINTMENTS).format(person=person, service=service, day=day, time=time, at=f" in {place}" if place else "")
    return text, {"type": "appointment", "person": person, "service": service, "day": day, "time": time, "place": place}


def _invoice(dice: _Dice) -> tuple[str, Fields]:
    supplier, number = dice.pick(COMPANIES), f"{dice.pick('ABCDEFGH')}{100 + dice.below(900)}"
    amount = 20 + dice.below(980)
    currency, wording = dice.pick(CURRENCIES)
    due = dice.maybe(0.6, f"{1 + dice.below(28)} {dice.pick(MONTHS)}")
    text = dice.pick(INVOICES).format(supplier=supplier, number=number, money=wording.format(amount), due=f", due {due}" if due else "")
    return text, {"type": "invoice", "supplier": supplier, "number": number, "amount": amount, "currency": currency, "due": due}


KINDS: tuple[tuple[Maker, str], ...] = (
    (_order, "Answer in JSON: type, customer, product, quantity, deliver_by."),
    (_appointment, "Answer in JSON: type, person, service, day, time, place."),
    (_invoice, "Answer in JSON: type, supplier, number, amount, currency, due."),
)


def extraction_rows() -> list[dict[str, list[dict[str, str]]]]:
    """All rows, each with another text: TRAIN_ROWS to train on, then EVAL_ROWS held out."""
    dice = _Dice(SEED)
    rows: dict[str, dict[str, list[dict[str, str]]]] = {}
    while len(rows) < TRAIN_ROWS + EVAL_ROWS:
        make, instruction = dice.pick(KINDS)
        text, fields = make(dice)
        answer = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
        messages = [("system", instruction), ("user", text), ("assistant", answer)]
        rows.setdefault(text, {"messages": [{"role": role, "content": content} for role, content in messages]})
    return list(rows.values())


def builtin_bytes(path: str) -> bytes:
    """The JSONL bytes of `builtin:extraction/train` or `builtin:extraction/eval`. Raises DataError for another name."""
    rows = extraction_rows()
    parts = {"builtin:extraction/train": rows[:TRAIN_ROWS], "builtin:extraction/eval": rows[TRAIN_ROWS:]}
    if path not in parts:
        raise DataError(f"no data set is built in under the name {path}", fix=f"use {' or '.join(parts)}")
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in parts[path])
