"""Tokenizers built once per run, a tiny one without any model, and chat templates of well-known models."""

import json
from functools import cache

from sojourn.models.text_config import PieceStyle, TextConfig
from sojourn.models.tokenizer import SPACE_MARK, Tokenizer
from sojourn.models.tokenizer_gguf import tokenizer_from_gguf

tokenizer_of = cache(Tokenizer)  # of (tokenizer_json, text config): Gemma's takes a second

CHATML_WITH_DEFAULT = (
    "{%- if messages[0]['role'] == 'system' %}\n"
    "    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}\n"
    "{%- else %}\n"
    "    {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}\n"
    "{%- endif %}\n"
    "{%- for message in messages %}\n"
    "    {%- if message.role == 'user' or message.role == 'assistant' or (message.role == 'system' and not loop.first) %}\n"
    "        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n"
    "    {%- endif %}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n"
)
# Earlier answers lose their thinking; answers after the last question keep it.
THINKING = (
    "{%- set ns = namespace(last=0) %}\n"
    "{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}\n"
    "{%- for m in messages %}\n"
    "    {%- if m.role == 'assistant' %}\n"
    "        {%- set text = m.content.split('</think>')[-1].lstrip('\\n') %}\n"
    "        {%- set thought = '<think>\\n\\n</think>\\n\\n' if loop.index0 > ns.last else '' %}\n"
    "        {{- '<|im_start|>assistant\\n' + thought + text + '<|im_end|>\\n' }}\n"
    "    {%- else %}\n"
    "        {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}\n"
    "    {%- endif %}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<|im_start|>assistant\\n' }}\n"
    "    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}\n"
    "{%- endif %}\n"
)
LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim"
    " + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}"
    "{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}"
    "{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}"
    "{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)
# The system message is written into the last user message, so no render is the beginning of the next.
MISTRAL = (
    '{%- if messages[0]["role"] == "system" %}\n'
    '    {%- set system_message = messages[0]["content"] %}\n    {%- set loop_messages = messages[1:] %}\n'
    "{%- else %}\n    {%- set loop_messages = messages %}\n{%- endif %}\n"
    "{{- bos_token }}\n"
    "{%- for message in loop_messages %}\n"
    '    {%- if message["role"] == "user" %}\n'
    "        {%- if loop.last and system_message is defined %}\n"
    '            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}\n'
    '        {%- else %}\n            {{- "[INST] " + message["content"] + "[/INST]" }}\n        {%- endif %}\n'
    '    {%- elif message["role"] == "assistant" %}\n        {{- " " + message["content"] + eos_token}}\n'
    "    {%- endif %}\n"
    "{%- endfor %}\n"
)


@cache
def tiny_tokenizer(specials: tuple[str, ...] = (), add_bos: bool = False, space_prefix: bool = False) -> Tokenizer:
    """SentencePiece style: printable ASCII, every byte, and `specials`, of which the first is BOS and the last EOS."""
    characters = [SPACE_MARK, "\n", *map(chr, range(0x21, 0x7F))]
    tokens = ["<unk>", *specials, *[f"<0x{byte:02X}>" for byte in range(256)], *characters]
    kinds = [2, *[3] * len(specials), *[6] * 256, *[1] * len(characters)]
    fields: dict[str, object] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": [0.0] * len(tokens),
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": space_prefix,
        "tokenizer.ggml.add_bos_token": add_bos,
    }
    if specials:
        fields |= {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": len(specials)}
    return Tokenizer(*tokenizer_from_gguf(fields))


def byte_level_json(tokens: dict[str, int], merges: list[list[str]]) -> str:
    """A tokenizer.json of byte-level BPE, as small as they come."""
    model = {"type": "BPE", "vocab": tokens, "merges": merges}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return json.dumps({"version": "1.0", "added_tokens": [], "pre_tokenizer": level, "decoder": level, "model": model})


BYTE_LEVEL = TextConfig(pieces=PieceStyle.BYTE_LEVEL)
