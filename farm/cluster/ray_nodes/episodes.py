"""The running episodes of all nodes over Ray, for the gateway."""

import asyncio
from typing import Any

from ray.exceptions import RayError

from farm.cluster.ray_agents import RayAgents
from farm.episode.story import LiveText, NodeEpisodesAway, TellingOrder, TextPlace
from farm.learner_sandboxes import NodeAway
from farm.schemas.story import RunningEpisodeAnswer, StoryWindow

ANSWER_S = 10.0


class RayNodeEpisodes:
    """Implement ``NodeEpisodes`` by calls of the actors of the agents."""

    def __init__(self, agents: RayAgents) -> None:
        self._agents = agents

    async def list(self, node_id: str) -> tuple[RunningEpisodeAnswer, ...]:
        episodes: tuple[RunningEpisodeAnswer, ...] = await self._call(node_id, "list")
        return episodes

    async def story(
        self, node_id: str, rollout_id: str, order: TellingOrder
    ) -> tuple[RunningEpisodeAnswer, StoryWindow] | None:
        told: tuple[RunningEpisodeAnswer, StoryWindow] | None = await self._call(node_id, "story", rollout_id, order)
        return told

    async def text(self, node_id: str, rollout_id: str, place: TextPlace) -> LiveText | None:
        text: LiveText | None = await self._call(node_id, "text", rollout_id, place)
        return text

    async def _call(self, node_id: str, method: str, *arguments: object) -> Any:
        try:
            async with asyncio.timeout(ANSWER_S):
                actor = await self._agents.actor(node_id)
                return await actor.episode.remote(method, *arguments)
        except NodeAway as error:
            raise NodeEpisodesAway(str(error)) from None
        except TimeoutError:
            raise NodeEpisodesAway(f"its agent has not answered within {ANSWER_S:g} s") from None
        except RayError as error:
            self._agents.forget(node_id)
            raise NodeEpisodesAway("its agent ended during the call, or does not answer") from error
