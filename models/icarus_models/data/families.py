"""Families of simple tasks: one pattern over many cases, so that what is learned is the pattern."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """One task of a family; `calls` are expressions on which a wrong version should differ."""

    family: str
    code: str
    says: tuple[str, ...]
    calls: tuple[str, ...]


_CHARS = (
    ("vowels", "vowels", 'char in "aeiouAEIOU"', "e"),
    ("digits", "digits", "char.isdigit()", "7"),
    ("letters", "letters", "char.isalpha()", "e"),
    ("uppercase", "upper case letters", "char.isupper()", "B"),
    ("lowercase", "lower case letters", "char.islower()", "e"),
    ("spaces", "spaces", "char.isspace()", " "),
    ("punctuation", "punctuation marks", 'char in ".,;:!?"', "!"),
)
_NUMBERS = (
    ("even", "even", "n % 2 == 0"),
    ("odd", "odd", "n % 2 != 0"),
    ("positive", "positive", "n > 0"),
    ("negative", "negative", "n < 0"),
    ("nonzero", "nonzero", "n != 0"),
)
_MAPS = (
    ("square", "squares", "squares every number in a list", "n * n"),
    ("double", "doubled", "doubles every number in a list", "n * 2"),
    ("cube", "cubes", "cubes every number in a list", "n ** 3"),
    ("halve", "halves", "halves every number in a list", "n / 2"),
    ("negate", "negated", "negates every number in a list", "-n"),
    ("increment", "incremented", "adds one to every number in a list", "n + 1"),
)
_UNITS = (
    ("km", "miles", "kilometers", "miles", "* 0.621371"),
    ("miles", "km", "miles", "kilometers", "* 1.609344"),
    ("kg", "pounds", "kilograms", "pounds", "* 2.204623"),
    ("pounds", "kg", "pounds", "kilograms", "* 0.453592"),
    ("inches", "cm", "inches", "centimeters", "* 2.54"),
    ("cm", "inches", "centimeters", "inches", "/ 2.54"),
    ("feet", "meters", "feet", "meters", "* 0.3048"),
    ("hours", "minutes", "hours", "minutes", "* 60"),
    ("minutes", "seconds", "minutes", "seconds", "* 60"),
    ("days", "hours", "days", "hours", "* 24"),
    ("weeks", "days", "weeks", "days", "* 7"),
    ("cents", "dollars", "cents", "dollars", "/ 100"),
)
_WORDS = (
    ("starting_with", "that start with a letter", "letter", "word.startswith(letter)", '"a"'),
    ("ending_with", "that end with a letter", "letter", "word.endswith(letter)", '"t"'),
    ("containing", "that contain a letter", "letter", "letter in word", '"b"'),
    ("longer_than", "that are longer than a length", "length", "len(word) > length", "3"),
    ("shorter_than", "that are shorter than a length", "length", "len(word) < length", "3"),
    ("of_length", "that have a given length", "length", "len(word) == length", "3"),
)
_SHAPES = (
    ("square_area", ("side",), "computes the area of a square", "side ** 2", "3"),
    ("square_perimeter", ("side",), "computes the perimeter of a square", "4 * side", "3"),
    (
        "circle_circumference",
        ("radius",),
        "computes the circumference of a circle",
        "2 * 3.141592653589793 * radius",
        "3",
    ),
    ("cube_volume", ("side",), "computes the volume of a cube", "side ** 3", "3"),
    ("cube_surface", ("side",), "computes the surface area of a cube", "6 * side ** 2", "3"),
    ("box_volume", ("length", "width", "height"), "computes the volume of a box", "length * width * height", "2, 3, 5"),
    ("sphere_volume", ("radius",), "computes the volume of a sphere", "4 / 3 * 3.141592653589793 * radius ** 3", "3"),
    (
        "cylinder_volume",
        ("radius", "height"),
        "computes the volume of a cylinder",
        "3.141592653589793 * radius ** 2 * height",
        "2, 5",
    ),
    (
        "cone_volume",
        ("radius", "height"),
        "computes the volume of a cone",
        "3.141592653589793 * radius ** 2 * height / 3",
        "2, 5",
    ),
    ("trapezoid_area", ("a", "b", "height"), "computes the area of a trapezoid", "(a + b) * height / 2", "2, 3, 5"),
    ("hypotenuse", ("a", "b"), "computes the hypotenuse of a right triangle", "(a ** 2 + b ** 2) ** 0.5", "3, 4"),
    ("speed", ("distance", "time"), "computes the speed from distance and time", "distance / time", "10, 4"),
    (
        "discount_price",
        ("price", "percent"),
        "computes a price after a discount",
        "price * (1 - percent / 100)",
        "50, 20",
    ),
    ("add_tax", ("price", "percent"), "adds a tax to a price", "price * (1 + percent / 100)", "50, 20"),
    ("simple_interest", ("amount", "rate", "years"), "computes simple interest", "amount * rate * years", "50, 2, 3"),
    ("sum_of_two", ("a", "b"), "adds two numbers", "a + b", "2, 3"),
    ("product_of_two", ("a", "b"), "multiplies two numbers", "a * b", "2, 3"),
    ("difference_of_two", ("a", "b"), "subtracts two numbers", "a - b", "2, 3"),
    ("average_of_two", ("a", "b"), "computes the average of two numbers", "(a + b) / 2", "2, 3"),
    ("is_divisible", ("a", "b"), "checks if one number is divisible by another", "a % b == 0", "6, 4"),
)


def families() -> Iterator[Entry]:
    """All entries, in a fixed order."""
    yield from _characters()
    yield from _number_lists()
    yield from _word_lists()
    for name, noun, says, value in _MAPS:
        code = f"def {name}_all(numbers):\n    return [{value} for n in numbers]"
        alternative = (
            f"returns a list of the {noun} numbers"
            if noun.endswith("ed")
            else f"returns the {noun} of a list of numbers"
        )
        yield Entry("map", code, (says, alternative), (f"{name}_all([3, -2, 5])",))
    for short, other, long, target, factor in _UNITS:
        code = f"def {short}_to_{other}({short}):\n    return {short} {factor}"
        phrases = (f"converts {long} to {target}", f"turns a number of {long} into {target}")
        yield Entry("unit", code, phrases, (f"{short}_to_{other}(5)",))
    for name, params, phrase, value, example in _SHAPES:
        code = f"def {name}({', '.join(params)}):\n    return {value}"
        yield Entry("formula", code, (phrase, phrase.replace("computes", "calculates")), (f"{name}({example})",))


def _characters() -> Iterator[Entry]:
    texts = ('"He said: B 7, ok!"', '""', '"eee"', '"zB7! e"')
    for key, noun, test, only in _CHARS:
        one = noun[:-1] if noun.endswith("s") else noun
        article = "an" if one[0] in "aeiou" else "a"
        kinds = (
            (
                f"count_{key}(text)",
                f"sum(1 for char in text if {test})",
                (f"counts the {noun} in a string", f"returns the number of {noun} in a text"),
            ),
            (
                f"remove_{key}(text)",
                f'"".join(char for char in text if not {_closed(test)})',
                (f"removes all {noun} from a string", f"returns a string without its {noun}"),
            ),
            (
                f"keep_{key}(text)",
                f'"".join(char for char in text if {test})',
                (f"keeps only the {noun} of a string", f"extracts the {noun} from a string"),
            ),
            (
                f"has_{key}(text)",
                f"any({test} for char in text)",
                (f"checks if a string contains {noun}", f"tells whether there is {article} {one} in a string"),
            ),
            (
                f"only_{key}(text)",
                f"all({test} for char in text)",
                (f"checks if a string consists only of {noun}", f"tells whether all characters of a string are {noun}"),
            ),
            (
                f"replace_{key}(text, new)",
                f'"".join(new if {test} else char for char in text)',
                (f"replaces all {noun} in a string by another character", f"replaces the {noun} of a string"),
            ),
        )
        for signature, value, says in kinds:
            name = signature.split("(")[0]
            extra = ', "*"' if "new" in signature else ""
            calls = tuple(f"{name}({text}{extra})" for text in (*texts, repr(only)))
            yield Entry("characters", f"def {signature}:\n    return {value}", says, calls)


def _closed(test: str) -> str:
    return f"({test})" if " " in test else test


def _number_lists() -> Iterator[Entry]:
    lists = ("[3, -4, 0, 6, 5, -1]", "[]", "[2, 4]", "[-3, -5]", "[7]", "[0]")
    for key, word, test in _NUMBERS:
        kinds = (
            (
                f"filter_{key}",
                f"[n for n in numbers if {test}]",
                (
                    f"returns the {word} numbers of a list",
                    f"keeps only the {word} numbers in a list",
                    f"filters the {word} numbers from a list",
                ),
            ),
            (
                f"count_{key}",
                f"sum(1 for n in numbers if {test})",
                (f"counts the {word} numbers in a list", f"returns how many {word} numbers a list has"),
            ),
            (
                f"sum_{key}",
                f"sum(n for n in numbers if {test})",
                (f"adds up the {word} numbers in a list", f"computes the sum of the {word} numbers in a list"),
            ),
            (
                f"all_{key}",
                f"all({test} for n in numbers)",
                (f"checks if all numbers in a list are {word}", f"tells whether every number of a list is {word}"),
            ),
            (
                f"any_{key}",
                f"any({test} for n in numbers)",
                (f"checks if any number in a list is {word}", f"tells whether a list has {word} numbers"),
            ),
            (
                f"remove_{key}",
                f"[n for n in numbers if not {test}]",
                (f"removes the {word} numbers from a list", f"returns a list without its {word} numbers"),
            ),
        )
        for name, value, says in kinds:
            calls = tuple(f"{name}({numbers})" for numbers in lists)
            yield Entry("numbers", f"def {name}(numbers):\n    return {value}", says, calls)
        body = f"    for n in numbers:\n        if {test}:\n            return n\n    return None"
        loop = f"def first_{key}(numbers):\n{body}"
        says = (f"returns the first {word} number of a list", f"finds the first {word} number in a list")
        yield Entry("numbers", loop, says, tuple(f"first_{key}({numbers})" for numbers in lists))


def _word_lists() -> Iterator[Entry]:
    words = '["ant", "bat", "crab", "a", "at", "bo"]'
    for key, phrase, param, test, example in _WORDS:
        kinds = (
            (
                f"words_{key}",
                f"[word for word in words if {test}]",
                (f"returns the words of a list {phrase}", f"finds all words in a list {phrase}"),
            ),
            (
                f"count_{key}",
                f"sum(1 for word in words if {test})",
                (f"counts the words in a list {phrase}", f"returns how many words of a list there are {phrase}"),
            ),
        )
        for name, value, says in kinds:
            yield Entry(
                "words", f"def {name}(words, {param}):\n    return {value}", says, (f"{name}({words}, {example})",)
            )
