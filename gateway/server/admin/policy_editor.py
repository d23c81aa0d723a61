"""The policy in force, for the operator's page: look, check, replay, save.

Laws. Only a policy that parses is saved, and only over the text that the operator saw: an edit that
somebody else made meanwhile is never lost. The file is replaced whole. A replay runs in a separate
process, so no request waits for it, and it ends in time.
"""

import asyncio
import hashlib
import logging
import os
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from filelock import FileLock, Timeout

from gateway.cache.append_files import replace_file
from gateway.server.admin.operations import Fields, refuse_other_fields
from gateway.server.admin.recorded_request import InvalidFieldError
from gateway.server.open.policy_file import PolicyFile
from policies.format.load import parse_policy
from policies.format.yaml_document import MAX_CHARACTERS, PolicyError, policy_text

log = logging.getLogger(__name__)

LOCK_SECONDS = 5.0
REPLAY_SECONDS = 120.0

_REPLAY = (sys.executable, "-P", "-m", "gateway.cli", "policy", "replay", "--json")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyEditor:
    """Looks at one policy file, and replaces it."""

    policies: PolicyFile
    is_packaged: bool
    """Whether the policy of the package is in force, because none is set."""
    decision_log: Path | None
    data_dir: Path
    replaying: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def page(self) -> Fields:
        """Return the text of the file, and whether it is in force and may be edited."""
        return await asyncio.to_thread(self._page)

    def _page(self) -> Fields:
        data, path = self.policies.path.read_bytes(), self.policies.path
        replays = self.decision_log is not None and self.decision_log.is_file()
        return {
            "source": str(path),
            "generation": self.policies.active.policy.generation,
            "problem": self.policies.problem,
            "in_force": self.policies.has_in_force(data),
            "text": data.decode("utf-8-sig", errors="replace"),
            "sha256": hashlib.sha256(data).hexdigest(),
            "read_only": self._why_not(),
            "decision_log": str(self.decision_log) if replays else None,
        }

    def _why_not(self) -> str | None:
        """Return why the file cannot be edited here, or None."""
        if self.is_packaged:
            return "No policy file is set: the packaged policy is in force. Set policy: FILE."
        path = self.policies.path.resolve()
        if not os.access(path, os.W_OK):
            return f"The gateway may not write {path}."
        if not os.access(path.parent, os.W_OK):
            return f"The gateway may not write in the folder {path.parent}."
        return None

    async def check(self, fields: Fields) -> Fields:
        """Return every problem of a policy with its line."""
        refuse_other_fields(fields, "text")
        return await asyncio.to_thread(self._check, _text(fields))

    def _check(self, text: str) -> Fields:
        try:
            policy = parse_policy(policy_text(text.encode(), self._name), self._name)
        except PolicyError as error:
            problems = [
                {
                    "line": each.line,
                    "key": each.key,
                    "message": f"expected {each.expected}, got {each.got}",
                }
                for each in error.problems
            ]
            return {"valid": False, "problems": problems, "rules": []}
        rules = [rule.decision.rule for rule in policy.rules]
        return {"valid": True, "problems": [], "rules": rules, "generation": policy.generation}

    @property
    def _name(self) -> str:
        return self.policies.path.name

    async def replay(self, fields: Fields) -> Fields:
        """Return what an edited policy would have changed for the requests of the decision log."""
        refuse_other_fields(fields, "text")
        text = _text(fields)
        await self._refuse_invalid(text)
        if self.decision_log is None or not self.decision_log.is_file():
            raise InvalidFieldError("text", "a decision log to replay: set decision_log: FILE")
        if self.replaying.locked():
            raise InvalidFieldError("text", "one replay at a time: try again")
        async with self.replaying:
            # No pipe: what uvloop gives a child as stdin cannot be opened by its name.
            edited = await asyncio.to_thread(_write_temporary, text)
            try:
                return await self._run_replay(edited, self.decision_log)
            finally:
                edited.unlink(missing_ok=True)

    async def _run_replay(self, edited: Path, decisions: Path) -> Fields:
        child = await asyncio.create_subprocess_exec(
            *_REPLAY,
            *("--data-dir", str(self.data_dir), "--policy", str(edited), str(decisions)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(REPLAY_SECONDS):
                found, said = await child.communicate()
        except TimeoutError:
            raise InvalidFieldError("text", f"a replay of at most {REPLAY_SECONDS:g} s") from None
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
        if child.returncode != 0:
            why = said.decode(errors="replace").strip().splitlines()
            raise InvalidFieldError("text", f"a log to replay ({why[-1] if why else 'it failed'})")
        report: Fields = orjson.loads(found)
        return report

    async def save(self, fields: Fields) -> Fields:
        """Replace the file, if it still is the one with this ``sha256``. Raises OSError."""
        refuse_other_fields(fields, "text", "sha256")
        text, seen = _text(fields), fields.get("sha256")
        if not isinstance(seen, str):
            raise InvalidFieldError("sha256", "the SHA-256 of the text that was edited")
        if (why_not := self._why_not()) is not None:
            raise InvalidFieldError("text", f"a policy file that can be edited here ({why_not})")
        await self._refuse_invalid(text)
        await asyncio.to_thread(self._replace, text.encode(), seen)
        digest = hashlib.sha256(text.encode()).hexdigest()
        log.info("policy: %s saved by an operator, sha256 %s", self.policies.path, digest)
        return {"sha256": digest, "bytes": len(text.encode())}

    async def _refuse_invalid(self, text: str) -> None:
        checked = await asyncio.to_thread(self._check, text)
        if not checked["valid"]:
            first = checked["problems"][0]
            where = f"line {first['line']}: {first['key']}: ".replace(": : ", ": ")
            raise InvalidFieldError("text", f"a valid policy ({where}{first['message']})")

    def _replace(self, data: bytes, seen: str) -> None:
        # Through a link, so that the link stays.
        path = self.policies.path.resolve()
        try:
            with FileLock(path.with_name(path.name + ".lock"), LOCK_SECONDS, 0o600):
                if hashlib.sha256(path.read_bytes()).hexdigest() != seen:
                    raise InvalidFieldError(
                        "sha256", "the file as it was; somebody has changed it: load it again"
                    )
                replace_file(path, data)
        except Timeout:
            raise InvalidFieldError("text", "no other edit at the same time: try again") from None


def _text(fields: Fields) -> str:
    text: Any = fields.get("text")
    if not isinstance(text, str) or len(text) > MAX_CHARACTERS:
        raise InvalidFieldError("text", f"the text of a policy, up to {MAX_CHARACTERS} characters")
    return text


def _write_temporary(text: str) -> Path:
    descriptor, name = tempfile.mkstemp(prefix="refrain-policy-", suffix=".yaml")
    with os.fdopen(descriptor, "wb") as file:
        file.write(text.encode())
    return Path(name)
