"""reprise as a Ray Serve application: each replica of the deployment starts the program on a Unix socket and passes
requests to it. Ray places replicas, scales them by open requests, and restarts those whose health check fails.

    pip install "ray[serve]" aiohttp
    REPRISE_MODEL=models/demo serve run --app-dir deploy/ray reprise_app:app

Environment: REPRISE_MODEL, REPRISE_BIN (reprise), REPRISE_ARGS (further flags), REPRISE_GPUS (for each replica; 0),
REPRISE_MAX_REPLICAS (2), REPRISE_ONGOING (requests for each replica that Ray aims at; 32).
"""
import asyncio
import os
import shlex
import shutil
import tempfile

import aiohttp
from ray import serve
from starlette.requests import Request
from starlette.responses import StreamingResponse

START_TIMEOUT_S = 900  # loading a large model
GRACE_S = 300  # for requests in flight
# Of one connection (RFC 9110, section 7.6.1), and what each side writes itself.
NOT_PASSED_ON = {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "host",
                 "content-length", "date", "server"}
PRIVATE = ("/metrics", "/debug")


class Program:
    """The program, and a client of its socket."""

    def __init__(self, command, model, args):
        self.folder = tempfile.mkdtemp(prefix="reprise-")
        self.command = [command, "serve", model, "--uds", os.path.join(self.folder, "socket"),
                        "--shutdown-timeout", str(GRACE_S), *args]

    async def start(self):
        self.process = await asyncio.create_subprocess_exec(*self.command)
        connector = aiohttp.UnixConnector(path=os.path.join(self.folder, "socket"), limit=0)
        self.session = aiohttp.ClientSession("http://localhost", connector=connector, auto_decompress=False,
                                             timeout=aiohttp.ClientTimeout(total=None))
        for _ in range(START_TIMEOUT_S * 10):
            if await self.is_ready():
                return
            if self.process.returncode is not None:
                raise RuntimeError(f"reprise ended with exit code {self.process.returncode}")
            await asyncio.sleep(0.1)
        raise TimeoutError("reprise did not become ready")

    async def is_ready(self):
        try:
            async with self.session.get("/health/ready") as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False

    async def open(self, method, target, headers, body):
        """The answer's head; its body is read from it."""
        kept = {name: value for name, value in headers.items() if name.lower() not in NOT_PASSED_ON}
        return await self.session.request(method, target, headers=kept, data=body or None)

    async def stop(self):
        await self.session.close()
        if self.process.returncode is None:
            self.process.terminate()
            await self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@serve.deployment(
    max_ongoing_requests=1024,
    graceful_shutdown_timeout_s=GRACE_S + 30,
    health_check_period_s=2,
    autoscaling_config={"min_replicas": 1, "max_replicas": int(os.environ.get("REPRISE_MAX_REPLICAS", "2")),
                        "target_ongoing_requests": int(os.environ.get("REPRISE_ONGOING", "32"))},
    ray_actor_options={"num_gpus": float(os.environ.get("REPRISE_GPUS", "0"))})
class Reprise:
    async def __init__(self, command, model, args):
        self.program = Program(command, model, args)
        await self.program.start()

    async def check_health(self):
        if not await self.program.is_ready():
            raise RuntimeError("reprise is not ready")

    async def __call__(self, request: Request):
        if request.url.path.startswith(PRIVATE):
            return StreamingResponse(iter([b""]), status_code=404)
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        answer = await self.program.open(request.method, target, request.headers, await request.body())

        async def body():
            try:
                async for part in answer.content.iter_any():
                    yield part
            finally:
                answer.close()  # a client that leaves cancels its request
        headers = {name: value for name, value in answer.headers.items() if name.lower() not in NOT_PASSED_ON}
        return StreamingResponse(body(), status_code=answer.status, headers=headers)

    async def __del__(self):
        await self.program.stop()


app = Reprise.bind(os.environ.get("REPRISE_BIN", "reprise"), os.environ.get("REPRISE_MODEL", "models/demo"),
                   shlex.split(os.environ.get("REPRISE_ARGS", "")))
