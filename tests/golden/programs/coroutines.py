"""Coroutines: awaited, gathered, cancelled, failing, and asynchronous generators and context managers."""

import asyncio


def leaf(value):
    return value


async def sleeper(name, rounds):
    for _ in range(rounds):
        await asyncio.sleep(0)
        leaf(name)
    return name


async def failing():
    await asyncio.sleep(0)
    raise ValueError("in a coroutine")


async def numbers(limit):
    for number in range(limit):
        await asyncio.sleep(0)
        yield leaf(number)


class Manager:
    async def __aenter__(self):
        await asyncio.sleep(0)
        return leaf(self)

    async def __aexit__(self, *details):
        leaf("exit")


async def cancelled():
    try:
        await asyncio.sleep(60)
    finally:
        leaf("cancelled")


async def main():
    await sleeper("alone", 2)
    together = [
        asyncio.ensure_future(sleeper(name, rounds)) for name, rounds in (("a", 2), ("b", 3))
    ]  # 3.6 has no order
    await asyncio.gather(*together)
    async for number in numbers(2):
        leaf(number)
    async with Manager():
        leaf("inside")
    try:
        await failing()
    except ValueError:
        leaf("handled")
    task = asyncio.ensure_future(cancelled())
    await asyncio.sleep(0)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        leaf("ended")


loop = asyncio.new_event_loop()
loop.run_until_complete(main())
loop.close()
