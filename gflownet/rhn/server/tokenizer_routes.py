"""Routes for the tokens of a text, as in vLLM: evaluation harnesses count tokens with them."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict

from gflownet.rhn.server.chat_template import ChatTemplate
from gflownet.rhn.server.errors import bad_request
from gflownet.rhn.server.limits import Limits
from gflownet.rhn.server.request_fields import Tokens, body_schema, encoded, validated
from gflownet.rhn.server.service import Service
from gflownet.rhn.server.session import read_body

# Harnesses score the first token of a text after this one: models of plain text have no token for the beginning.
FIRST_TEXT = "\n"


class TokenizeRequest(BaseModel):
    """Body of POST /tokenize."""

    model_config = ConfigDict(strict=True, extra="forbid")

    model: str | None = None
    prompt: str
    add_special_tokens: bool = False  # there are none


class DetokenizeRequest(BaseModel):
    """Body of POST /detokenize."""

    model_config = ConfigDict(strict=True, extra="forbid")

    model: str | None = None
    tokens: Tokens


def add_tokenizer_routes(app: FastAPI, service: Service, limits: Limits, template: ChatTemplate) -> None:
    """Add /tokenize, /detokenize and /tokenizer_info."""
    codec = service.codec

    async def parsed(request: Request, kind: type[Any]) -> Any:
        body = await read_body(request, max_bytes=limits.max_body, seconds=limits.body_seconds)
        fields = validated(kind, body)
        if fields.model is not None:
            service.check_model(fields.model)
        return fields

    @app.post("/tokenize", openapi_extra=body_schema(TokenizeRequest))
    async def tokenize(request: Request) -> Any:
        fields: TokenizeRequest = await parsed(request, TokenizeRequest)
        tokens = encoded("prompt", fields.prompt, codec)
        return {"count": len(tokens), "max_model_len": limits.max_prompt, "tokens": tokens}

    @app.post("/detokenize", openapi_extra=body_schema(DetokenizeRequest))
    async def detokenize(request: Request) -> Any:
        fields: DetokenizeRequest = await parsed(request, DetokenizeRequest)
        largest = max(fields.tokens, default=0)
        if largest >= codec.vocabulary_size:
            raise bad_request("tokens", f"expected tokens of 0 .. {codec.vocabulary_size - 1}, got {largest}")
        return {"prompt": codec.decode(fields.tokens)}

    @app.get("/tokenizer_info")
    async def tokenizer_info() -> dict[str, str | None]:
        return {"bos_token": FIRST_TEXT, "eos_token": None, "pad_token": None, "chat_template": template.source}
