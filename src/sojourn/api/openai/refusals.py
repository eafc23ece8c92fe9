"""Fields that OpenAI's API has and this server has not: declared, so that a refusal says more than "unknown".

What would change nothing (null, an empty list, the only choice there is) is accepted; everything else is refused by
name. Knows pydantic, no route.
"""

from dataclasses import dataclass

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

UNSUPPORTED_PARAMETER = "unsupported_parameter"
UNSUPPORTED_VALUE = "unsupported_value"
INVALID_VALUE = "invalid_value"


def refusal(kind: str, text: str) -> PydanticCustomError:
    """An error whose kind becomes the `code` that a client sees."""
    return PydanticCustomError(kind, "{text}", {"text": text})


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Annotates a field that is not supported; `neutral` are the values, beside null, that ask for nothing."""

    what: str
    neutral: tuple[object, ...] = ()

    def check(self, value: object) -> object:
        if not any(type(value) is type(one) and value == one for one in (None, *self.neutral)):
            text = f"this server does not support {self.what}"
            raise refusal(UNSUPPORTED_VALUE if self.neutral else UNSUPPORTED_PARAMETER, text)
        return value

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"enum": [None, *self.neutral], "description": f"Not supported: {self.what}."}
