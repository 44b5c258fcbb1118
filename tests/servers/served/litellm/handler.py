"""A provider for LiteLLM: a model that is slow to answer."""

import asyncio

import litellm
import toy


class Toy(litellm.CustomLLM):
    async def acompletion(self, *args, **kwargs):
        await asyncio.to_thread(toy.answer)
        return litellm.mock_completion("toy", [{"role": "user", "content": "x"}], mock_response="one")


handler = Toy()
