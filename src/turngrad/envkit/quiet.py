"""Silence for two harmless noises of hud's server and client.

Cancelling a connection handler makes asyncio's own streams callback log a 12-line traceback on Python 3.11 and 3.12 (105 lines
for three rollouts), though nothing has gone wrong. A server that dies makes each tunnel to it log one, though each rollout
reports the loss itself. Only these records are dropped.
"""

from __future__ import annotations

import asyncio
import logging


def drop_stream_noise() -> None:
    """Install the filter on asyncio's logger, once."""
    logger = logging.getLogger("asyncio")
    if _worth_logging not in logger.filters:
        logger.addFilter(_worth_logging)


def _worth_logging(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    message = record.getMessage()
    cancelled = "StreamReaderProtocol" in message and isinstance(error, asyncio.CancelledError)
    broken_tunnel = "client_connected_cb" in message and isinstance(error, ConnectionError)
    return not (cancelled or broken_tunnel)
