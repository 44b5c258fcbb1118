"""A provider for LiteLLM: a model in another server, which is slow to answer."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import litellm
import toy

# LiteLLM awaits the answers of other servers in its event loop. No pool of threads bounds how many it awaits.
CALLS = ThreadPoolExecutor(1000)


class Toy(litellm.CustomLLM):
    async def acompletion(self, *args, **kwargs):
        await asyncio.get_running_loop().run_in_executor(CALLS, toy.answer)
        return litellm.mock_completion("toy", [{"role": "user", "content": "x"}], mock_response="one")


handler = Toy()
