-- Rescoring: the rewards of a group that no lease holds are replaced together.

-- "settled" (acked or dropped), "leased", or "free"
local function standing(group)
  local found = redis.call("HMGET", key("group:" .. group), "settled", "entry")
  if found[1] then return "settled" end
  local free_at = found[2] and redis.call("ZSCORE", key("held"), found[2])
  return free_at and tonumber(free_at) > now_ms() and "leased" or "free"
end

function commands.standing(group) return standing(group) end

-- Not a number for what is none.
local function number(text) return tonumber(text) or 0 / 0 end

-- group, version, token, members (cjson: [id, index, rules before, reward]) -> "done" | "leased" | "settled"
-- | "again": a member has come, or was rescored, since they were read | "unreadable": the sum of rewards would be none
function commands.rescore(group, version, token, members_json)
  local where = standing(group)
  if where ~= "free" then return where end
  local name, members = key("group:" .. group), cjson.decode(members_json)
  if tonumber(redis.call("HGET", name, "accepted") or "0") ~= #members then return "again" end
  local size, rewards, more = tonumber(redis.call("HGET", name, "size")), {}, 0
  for _, member in ipairs(members) do
    local id, index, before, reward = member[1], member[2], member[3], member[4]
    if (redis.call("HGET", name, "by:" .. index) or "") ~= before then return "again" end
    local fresh = redis.call("EXISTS", key("fresh:" .. token .. ":" .. id), key("fresh-head:" .. token .. ":" .. id))
    if fresh ~= 2 or redis.call("EXISTS", key("payload:" .. id)) == 0 then return "again" end
    rewards["reward:" .. index] = reward
    if reward ~= "null" then
      more = more + number(reward) - number(redis.call("HGET", name, "reward:" .. index))
    end
  end
  local sum = more + number(redis.call("HGET", key("counts"), "reward_sum") or "0")
  if sum - sum ~= 0 then return "unreadable" end
  local facts = #members == size and facts_of(group, size, rewards)
  for _, member in ipairs(members) do
    local id, index, reward = member[1], member[2], member[4]
    local head = key("fresh-head:" .. token .. ":" .. id)
    redis.call("RENAME", key("fresh:" .. token .. ":" .. id), key("payload:" .. id))
    redis.call("PERSIST", key("payload:" .. id))
    redis.call("HSET", key("heads"), id, redis.call("GET", head))
    redis.call("DEL", head)
    redis.call("HSET", name, "reward:" .. index, reward, "by:" .. index, version)
  end
  redis.call("HINCRBYFLOAT", key("counts"), "reward_sum", string.format("%.17g", more))
  redis.call("HSET", key("rules"), group, version)
  if facts then redis.call("HSET", name, "facts", facts) end
  return "done"
end

