"""FastAPI application: one client for all requests, made and closed with the application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, Request

from fastjournal import Client


def new_client() -> Client:
    """Return the client of the application; a test has another function here."""
    return Client()


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Keep a client open while the application runs."""
    async with new_client() as app.state.jobs:
        yield


def jobs_of(request: Request) -> Client:
    """Return the client, for the arguments of a function of the application."""
    client: Client = request.app.state.jobs
    return client


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{number}", status_code=202)
async def confirm(number: int, jobs: Annotated[Client, Depends(jobs_of)]) -> dict[str, str]:
    """Have the order confirmed by a mail; asked for twice, one mail is sent."""
    written = await jobs.enqueue("mails", {"order": number}, unique=f"order-{number}")
    return {"mail": str(written.outcome)}
