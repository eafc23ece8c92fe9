"""Writes corpus.json and what llama.cpp makes of it: smollm2.json, gemma3.json and pre.json.

    python tests/data/tokenization/make.py SMOLLM2.gguf GEMMA3.gguf

Needs llama-cpp-python (the `bench` extra). The corpus is fixed by its seed; the ids are llama.cpp's, without BOS, with and
without parsing special tokens: {"special": [[...], ...], "plain": [[...], ...]}, one list per string. pre.json has, for
each word cut applied to SmolLM2's vocabulary, a checksum of the ids of each string.
"""

import json
import random
import sys
import tempfile
import unicodedata
import zlib
from pathlib import Path

import gguf
from llama_cpp import Llama

HERE = Path(__file__).parent

PROSE = [
    "",
    "Hello",
    "Hello, world!",
    "The quick brown fox jumps over the lazy dog.",
    "I'm, you're, he's, we'll, they'd, I've, don't; I'M, YOU'RE, HE'S, WE'LL, THEY'D, I'VE, DON'T",
    "'s't're've'm'll'd 's 't 're 've 'm 'll 'd ''' '' '",
    "It’s “quoted” — with ‘smart’ punctuation… and – dashes‑and‐hyphens",
    "visit https://example.com/a/b?c=d&e=f#g or mail a.b+c@example.co.uk",
    "www.example.org/~user/%20file.tar.gz?x[]=1&y={}",
    "CamelCaseIdentifier snake_case_identifier SCREAMING_SNAKE kebab-case-name",
    "e.g. i.e. etc. U.S.A. Ph.D. 3rd 1st 2nd",
    "Pneumonoultramicroscopicsilicovolcanoconiosis",
    "Donaudampfschifffahrtsgesellschaftskapitänsmützenabzeichen",
    "supercalifragilisticexpialidocious" * 8,
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "abcabcabcabcabcabcabcabcabcabcabcabc",
    "xyzzy" * 40,
    "=" * 77,
    "-" * 33 + "+" + "-" * 34,
    "!!!!!!???????......,,,,,;;;;:::",
    "####### ****** ______ ~~~~~~ ``````",
]
NUMBERS = [
    "1",
    "12",
    "123",
    "1234567890",
    "3.14159265358979",
    "1,000,000.00",
    "0x7fFF 0b1010 0o777 1e-9 -42 +7",
    "192.168.0.1:8080",
    "2024-02-29T23:59:60Z",
    "v1.2.3-rc4+build.567",
    "½ ¾ ² ³ ¹ ① ⑳ Ⅷ ⅻ 〇 一二三",
    "٠١٢٣٤٥٦٧٨٩ ०१२३ ๐๑๒๓ 012 𝟘𝟙𝟚",
    "a1b22c333d4444e55555",
    "$1.50 €2,99 £3 ¥400 50% 60° 7² m³",
    "99999999999999999999999999999999999999999999999999",
]
SPACES = [
    " ",
    "  ",
    "   ",
    " " * 7,
    " " * 31,
    " " * 32,
    " " * 63,
    "\t",
    "\t\t",
    "\t" * 17,
    "\t" * 33,
    "\n",
    "\n\n",
    "\n" * 31,
    "\n" * 32,
    "\n" * 65,
    "\r\n",
    "\r\n\r\n",
    "\r",
    "\r\r\n\n\r",
    " \n \n ",
    "\n \n\t\n",
    " \t \t ",
    "  leading",
    "trailing  ",
    " one leading",
    "one trailing ",
    "\tleading tab",
    "\nleading newline",
    "trailing newline\n",
    "a  b   c    d     e",
    "a\tb\t\tc\t \td",
    "line one\nline two\r\nline three\n\nline five\n\n\nend",
    "    indented\n        more\n\tand tab\n",
    "\u00a0no\u00a0break\u00a0\u00a0space",
    "thin\u2009hair\u200aen\u2002em\u2003ideographic\u3000space",
    "line\u2028separator\u2029paragraph\u0085next",
    "\v\f vertical and form feed \v\f",
    "already \u2581 marked \u2581\u2581 spaces\u2581",
]
SCRIPTS = [
    "你好，世界！今天天气很好。",
    "我能吞下玻璃而不伤身体。",
    "哈哈哈哈哈哈哈哈哈哈哈哈哈",
    "吾輩は猫である。名前はまだ無い。",
    "カタカナとひらがなと漢字ｶﾀｶﾅ",
    "안녕하세요 세계, 나는 유리를 먹을 수 있어요.",
    "ㅋㅋㅋㅋㅋㅋ ㅠㅠ",
    "مرحبا بالعالم، كيف حالك؟",
    "السَّلَامُ عَلَيْكُمْ وَرَحْمَةُ ٱللَّٰهِ",
    "שלום עולם, מַה שְּׁלוֹמְךָ",
    "नमस्ते दुनिया, आप कैसे हैं?",
    "क्षत्रिय ज्ञान श्री",
    "สวัสดีชาวโลก ภาษาไทยไม่มีช่องว่าง",
    "ภูเขาน้ำแข็ง",
    "வணக்கம் உலகம்",
    "হ্যালো বিশ্ব",
    "გამარჯობა მსოფლიო",
    "Բարեւ աշխարհ",
    "Привет, мир! Съешь же ещё этих мягких французских булок.",
    "Γειά σου Κόσμε, ξεσκεπάζω την ψυχοφθόρα βδελυγμία",
    "Tiếng Việt có nhiều dấu: ắ ằ ẳ ẵ ặ",
    "Zażółć gęślą jaźń",
    "Árvíztűrő tükörfúrógép",
    "İstanbul ıspanak ŞIŞLI ß ẞ ﬁ ﬂ ǆ",
    "မင်္ဂလာပါ ကမ្ពុជា ລາວ བོད་སྐད",
    "ᚠᛇᚻ᛫ᛒᛦᚦ 𐍈 𐌰 𓀀 𒀀 𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
    "ᏣᎳᎩ ꓡꓲꓢꓴ አማርኛ ⴰⵎⴰⵣⵉⵖ",
    "ελληνικά и русский mixed 中文 with English",
]
EMOJI = [
    "😀",
    "😀😃😄😁",
    "👍🏽👍🏿👍",
    "👨‍👩‍👧‍👦 family",
    "🏳️‍🌈🏴‍☠️",
    "🇩🇪🇫🇷🇯🇵🇺🇸",
    "🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "❤️ ❤ ♥︎ ☺️",
    "1️⃣2️⃣#️⃣",
    "text😀text 😀 text",
    "🤷🏻‍♀️🧑‍💻🦾",
    "⌚⏰▶️©®™",
    "\U0001fae8\U0001fabf\U0001f6dc",
]
CODE = [
    "def f(x: int) -> int:\n    return x ** 2  # square\n",
    'if __name__ == "__main__":\n\tprint(f"{x!r:>10}")\n',
    "for (int i = 0; i < n; ++i) {\n    a[i] += b[i] * c[i];\n}\n",
    "#include <vector>\ntemplate <typename T>\nauto g(T&& t) -> decltype(auto) { return std::forward<T>(t); }\n",
    "const f = async (x) => { await y?.z ?? `${x}`; };",
    'fn main() { println!("{:?}", vec![1, 2, 3]); }',
    "SELECT a.id, COUNT(*) FROM t AS a WHERE a.x <> 'y' GROUP BY 1;",
    "<!DOCTYPE html>\n<html><head><title>Hi</title></head><body><h1>A</h1><p>b<br/>c</p><table><tr><td>1</td></tr></table></body></html>",
    '{"a": [1, 2.5, null, true], "b": {"c": "d\\n\\u00e9"}}',
    "key: value\nlist:\n  - one\n  - two\n\nother: |\n  text\n",
    "$ ls -la | grep '^d' && echo \"$HOME\" > /dev/null 2>&1",
    "\\frac{a}{b} \\sum_{i=0}^{\\infty} x_i^2 $$ \\mathbb{R} $$",
    "| a | b |\n|---|:-:|\n| 1 | 2 |\n",
    "```python\nprint('hi')\n```\n\n> quote\n\n* item\n",
    'package main\n\nimport "fmt"\n\nfunc main() {\n\tfmt.Println(`raw`)\n}\n',
    "lambda: (yield)  # noqa: E731\n\n\n@decorator\nclass A(B): ...\n",
    "a<-b->c=>d==e===f!=g!==h<=i>=j&&k||l::m..n...o",
    "\\n \\t \\x00 \\u1234 \\' \\\" \\\\",
    "%s %d %5.2f %% {0} {} {{}} ${x} #{y} <%= z %>",
]
ODD = [
    "\x00",
    "\x00\x01\x02\x03\x1b[31mred\x1b[0m\x7f",
    "bell\x07 backspace\x08 escape\x1b",
    "caf\u00e9 cafe\u0301",
    "\u1100\u1161\u11a8 \uac01",
    "Z\u0351\u036b\u0343a\u0363\u034dl\u0352\u0337g\u033ao\u0321",
    "a\u0300\u0301\u0302\u0303\u0304\u0305\u0306\u0307",
    "\u0301 alone",
    "zero\u200bwidth\u200cnon\u200djoiner\ufeffbom",
    "\ufeffstarts with a byte order mark",
    "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2069",
    "\ue000\uf8ff\U000f0000\U0010fffd private use",
    "\ufffd\ufffe\uffff non characters \U0001fffe\U0010ffff",
    "\u0378\u0379\U000e0000 unassigned",
    "soft\u00adhyphen\u2060word\u00a0joiner",
    "ﷺ ﷽ ㎏ ㍿ ℡ Ⓐ ｆｕｌｌｗｉｄｔｈ",
    "\u1e9b\u0323 \u212b \u2126 \ufb03",
    "<0x0A> <0xE2><0x96><0x81> <0xZZ> <0x>",
    "Ġ Ċ Ģ ĉ Ā ā",
    "\xa0\xad\xff\x80",
    '"\x04\\ -\x1d$ a\x13b\x14 "\x16/',
]
SPECIAL = [
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "a<|im_end|>b",
    " <|im_end|> ",
    "<|im_end|><|im_end|>\n\n<|im_start|>",
    "<|im_end|",
    "<|im_end |> <|IM_END|> <|im__end|>",
    "<|<|im_end|>|>",
    "<|endoftext|> text <|endoftext|>",
    "<repo_name>x<file_sep>y<filename>z<gh_stars>5",
    "<jupyter_code>print(1)<jupyter_output>1<empty_output>",
    "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n",
    "<bos>",
    "<eos>a<eos>",
    "<pad><unk><mask>",
    "a <bos> b<bos>c <bos>",
    "<unused0><unused99> <unused6241>",
    "[multimodal] <start_of_image><end_of_image>",
    "</s><s>[INST] x [/INST]",
    "<h1>\n</h1>\n\n<b> </b><i></i>",
    "<table>\t<tr>  <td>\n\n\n</td></tr></table>",
    "<code>x</code><strong>y</strong><sub>z</sub>",
    "<end_of_turn >\n<end_of_turn>\n\n\n\n<end_of_turn>",
    "< bos> <bos <bos>> <<bos>>",
    "▁<bos>▁",
]


def numbers_of_all_lengths() -> list[str]:
    return [("7305194862" * 3)[:n] for n in range(2, 25, 2)]


def mixtures(seed: int, count: int) -> list[str]:
    """Random texts: cuts of the fixed strings, runs of one character, and characters from every block."""
    rng = random.Random(seed)
    fixed = [s for group in (PROSE, NUMBERS, SPACES, SCRIPTS, EMOJI, CODE, ODD, SPECIAL) for s in group if s]

    def piece() -> str:
        kind = rng.randrange(5)
        if kind <= 1:
            text = rng.choice(fixed)
            start = rng.randrange(len(text))
            return text[start : start + rng.randint(1, 24)]
        if kind == 2:
            return rng.choice(" \t\n\r=-_aA0.#*/<>▁哈ハ😀") * rng.randint(1, 40)
        if kind == 3:
            return "".join(
                chr(rng.choice([rng.randint(32, 126), rng.randint(0, 0x2FF)])) for _ in range(rng.randint(1, 12))
            )
        high = [(0x300, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x1FFFF), (0x4E00, 0x9FFF), (0x1F300, 0x1FAFF)]
        points = [rng.randint(*rng.choice(high)) for _ in range(rng.randint(1, 8))]
        return "".join(chr(p) for p in points if unicodedata.category(chr(p)) != "Cn")

    return ["".join(piece() for _ in range(rng.randint(1, 8))) for _ in range(count)]


def corpus() -> list[str]:
    fixed = [*PROSE, *NUMBERS, *numbers_of_all_lengths(), *SPACES, *SCRIPTS, *EMOJI, *CODE, *ODD, *SPECIAL]
    forms = [unicodedata.normalize(form, text) for text in SCRIPTS[:24:4] for form in ("NFD", "NFC", "NFKD")]
    return list(dict.fromkeys([*fixed, *forms, *mixtures(seed=2, count=120)]))


def reference_ids(model: Path, texts: list[str]) -> dict[str, list[list[int]]]:
    llama = Llama(str(model), vocab_only=True, verbose=False)
    return {
        name: [llama.tokenize(text.encode(), add_bos=False, special=special) for text in texts]
        for name, special in (("special", True), ("plain", False))
    }


PRE = ["default", "gpt-2", "smollm", "llama-bpe", "qwen2", "tekken", "deepseek-v3"]


def with_pre(fields: dict[str, object], pre: str, target: Path) -> None:
    """A GGUF file with SmolLM2's vocabulary, that word cut and no tensors."""
    writer = gguf.GGUFWriter(target, "llama")
    writer.add_block_count(1)
    writer.add_context_length(1024)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(64)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(fields["tokenizer.ggml.tokens"])
    writer.add_token_types(fields["tokenizer.ggml.token_type"])
    writer.add_token_merges(fields["tokenizer.ggml.merges"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def checksums_by_pre(model: Path, texts: list[str]) -> dict[str, list[int]]:
    names = ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.merges")
    reader = gguf.GGUFReader(model)
    fields = {name: reader.fields[name].contents() for name in names}
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for pre in PRE:
            target = Path(folder) / f"{pre}.gguf"
            with_pre(fields, pre, target)
            ids = reference_ids(target, texts)["special"]
            found[pre] = [zlib.crc32(json.dumps(one).encode()) for one in ids]
    return found


def main() -> None:
    texts = corpus()
    (HERE / "corpus.json").write_text(json.dumps(texts, indent=0) + "\n")
    for name, model in (("smollm2", sys.argv[1]), ("gemma3", sys.argv[2])):
        ids = reference_ids(Path(model), texts)
        (HERE / f"{name}.json").write_text(json.dumps(ids, separators=(",", ":")).replace("]],", "]],\n") + "\n")
    sums = checksums_by_pre(Path(sys.argv[1]), texts)
    (HERE / "pre.json").write_text(json.dumps(sums, separators=(",", ":")).replace("],", "],\n") + "\n")


if __name__ == "__main__":
    main()
