-- Every step of the store that must be atomic. Called as EVALSHA with KEYS[1] = a run's base and
-- ARGV = command, arguments…. All keys of a run share one cluster slot: the base is "<prefix>:{<run id>}".
-- checkpoints.lua and retention.lua are appended when the script is loaded, and then the call of the command.
--
-- KEYS OF A RUN (base = <prefix>:{<run id>})
--   base:run              HASH    spec (JSON), state, reason, created_ms, ended_ms; requested (1) if the run is one group
--                                 that a learner reads by its id: then the stream stays empty, and no lease reads it;
--                                 policy: the name of its policy, if it has one; max_staleness: if stale groups are
--                                 dropped and replaced; feedback: if base:feedback is kept; in_turn: if groups are
--                                 delivered in the order of their ordinals; eval (1) if the run evaluates: its groups
--                                 are never put on the stream, and no lease reads them
--                                 state: running | paused | finished | cancelled | failed; the last three are final
--   base:counts           HASH    counters; see "COUNTERS"
--   base:payload:<id>     STRING  the rollout as stored wire form: one zstd frame of msgpack
--   base:sidecar:<id>     STRING  its turns, opening messages and patch: one zstd frame of msgpack
--   base:heads            HASH    rollout id -> msgpack of the rollout without its tokens
--   base:order            ZSET    rollout id, scored by its place in the order of acceptance (1, 2, 3 …)
--   base:group:<group>    HASH    size; for each accepted index i: mark:i (which record was accepted), reward:i
--                                 ("null" or the number), by:i (the version of the rules behind it), tokens:i,
--                                 version:i ("" or the oldest policy version); deliveries: how often the group has been
--                                 leased; settled: acked | provisional | dropped; once it is complete entry: its stream
--                                 entry; once it
--                                 was rescored facts: in place of those in the stream
--                                 bytes: of its stored rollouts; solved: members that solved the task; members: the
--                                 accepted indices (JSON), if they are others than 0 to size - 1; surplus:i: which
--                                 record of a surplus member was kept
--   base:feedback         LIST    news of groups for the scheduler: "complete <group> <judged> <solved>" and
--                                 "stale <group>", which replaces the group, each once for a group
--   base:early            ZSET    complete groups that wait for an earlier group, scored by their ordinals
--   base:rules            HASH    group -> the version of the rules that its members are judged by
--   base:fresh:<token>:<id>, base:fresh-head:<token>:<id>
--                         STRING  a payload and a head that a rescoring is about to put in place; they expire
--   base:stream           STREAM  one entry a complete group: group, facts; consumer group "learners".
--                                 Its pending list is exactly the groups that were handed out or put back, and those
--                                 whose acks are provisional.
--                                 facts (cjson): tokens, unjudged, same (rewards that are judged and all equal), version
--                                 (the oldest; absent where there is none). Integers are strings: cjson rounds
--                                 numbers to 14 digits
--   base:held             ZSET    stream entries of the pending list without an ack, scored by the ms at which they are
--                                 free to be leased (again): a lease's end, 0 for a group that was put back, or the place
--                                 (1, 2, 3 …) of a group in what a restore gave back
--   base:settled          ZSET    stream entries that were acked or dropped, scored by when (ms), until they expire
--   base:lease:<id>       HASH    consumer, state (live | acked | nacked | restored), expires_ms, learner and history if
--                                 it names a learner, acks: the number of the ack's last group, entries while it lives
--                                 (cjson: [entry, group, facts]); kept a day beyond its end, so that a late ack is answered "lost" and not "unknown"
--   base:learners         SET     the learners that make checkpoints
--   base:learner:<name>   HASH    history: its number of restores; step: of its last checkpoint, 0 for the start; acks:
--                                 the groups acked in the surviving history; final: how many of these are final; at_ms:
--                                 the time of its last checkpoint or restore
--   base:acked:<name>     ZSET    stream entries whose acks are provisional, scored by the number of the ack
--   base:leases:<name>    ZSET    ids of its live leases, scored by their end in ms
--   base:wake             STREAM  one entry, replaced whenever a waiting learner has reason to ask again
--
-- KEYS OF THE FARM, written outside these scripts
--   <prefix>:{*}:runs     ZSET    run id, scored by creation (ms)
--   <prefix>:{*}:requests ZSET    as runs, of requested groups, which are not in runs
--   <prefix>:{*}:evals    SET     the runs that evaluate, which are also in runs
--   <prefix>:{*}:live     SET     runs that may still have groups to lease, and requested groups that go on
--   <prefix>:{*}:wake     STREAM  one entry, replaced whenever a run is added
--   <prefix>:{*}:rewards  HASH    version -> a rule document (JSON: text, at)
--   <prefix>:{*}:reward   STRING  the version that runs follow which name none; absent: the farm's own
--   <prefix>:{*}:policies          HASH    name -> a policy document (JSON: version, endpoints, model, updated_at)
--   <prefix>:{*}:policies_paused   SET     the names of paused policies
--   <prefix>:{*}:policies_revision STRING  the number of changes of policies, for nodes that poll
--   <prefix>:{*}:evaluations       HASH    id -> the first lines of an evaluation (JSON)
--   <prefix>:{*}:evaluation:<id>   STRING  an evaluation: one zstd frame of JSON
--   <prefix>:bundle:<digest>  STRING  a packed task bundle
--   <prefix>:sandbox:<id>     STRING  the node and the task of a learner sandbox (JSON); it expires
--   <prefix>:{once:<caller>}:<key>   STRING  the kept answer of a call with an Idempotency-Key
--   <prefix>:{once:<caller>}:order   ZSET    a caller's keys, scored by when they were claimed (ms)
--
-- COUNTERS  accepted, status:<status>, unjudged (reward null), solved (all that can be had), reward_sum, tokens, bytes,
--   groups_complete, groups_read (taken off the stream), groups_leased, groups_redelivered, groups_acked,
--   groups_restored (their acks were undone), groups_provisional (acked, and not final now; goes up and down),
--   dropped_zero_variance, dropped_stale, requests_complete (requested groups, which groups_complete does not count),
--   evals_complete (groups of runs that evaluate, likewise),
--   groups_returned (stale groups that are replaced), surplus (members of groups that were complete without them),
--   lag_sum and lag_groups (policy lag of leased groups), bytes_queued (stored bytes of groups that are neither
--   settled nor acked provisionally) and bytes_provisional (of those acked so), which go up and down, bytes_largest (of
--   one rollout), in_turn (the ordinal of the next group that is delivered in turn), groups_early (the members of
--   base:early)
--
-- INVARIANTS  An entry belongs to a live lease exactly while now < its score in base:held, and that score is the
--   lease's expires_ms: so a lease is lost at the very moment its groups become free, and no two leases share one.
--   All members of a group are judged by the same rules: who comes with others is told, and judges again. A group is
--   rescored whole, and only while no lease holds it and nobody has acked it: all that could fail of it is worked out
--   before its first write, since Redis takes nothing back.
--   A group that is complete is in one place: on the stream and not read, in base:held, in base:acked of one learner, or
--   settled for good (base:settled, until it expires).
--   A group is put on the stream once, in the step that accepts its last member. A run that has ended accepts
--   nothing more, so that a drained stream stays drained.

local base = KEYS[1]
local command = ARGV[1]
local LEARNERS = "learners"
local KEEP_MS = 24 * 3600 * 1000
local MOST_DROPS = 500
local MOST_FORGOTTEN = 2000
local RETURNED = 1e9

local function key(name) return base .. ":" .. name end

local function now_ms()
  local time = redis.call("TIME")
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function count(name, by) redis.call("HINCRBY", key("counts"), name, by or 1) end

local function wake() redis.call("XADD", key("wake"), "MAXLEN", "1", "*", "w", "1") end

local function ended(state) return state == "finished" or state == "cancelled" or state == "failed" end

local function counted(name) return tonumber(redis.call("HGET", key("counts"), name) or "0") end

-- The state for a learner that makes checkpoints, or for all others: "acked" only for a learner whose own acks are
-- provisional while nothing is left to lease.
local function stream_state(learner)
  local state = redis.call("HGET", key("run"), "state")
  if not ended(state) then return "open" end
  if counted("groups_complete") > counted("groups_read") then return "open" end
  if redis.call("EXISTS", key("held")) == 1 then return "open" end
  if counted("groups_provisional") > 0 then
    return learner and redis.call("EXISTS", key("acked:" .. learner)) == 1 and "acked" or "open"
  end
  return state == "failed" and "failed" or "drained"
end

local commands = {}
local learners = {} -- the functions of checkpoints.lua that leases need

-- spec, requested (1 or ""), policy or "", max_staleness or "", feedback (1 or 0), in_turn (1 or 0), eval (1 or 0)
-- -> 1 new, 0 the same run is there already, -1 another run has this id
function commands.create_run(spec, requested, policy, max_staleness, feedback, in_turn, eval)
  local known = redis.call("HGET", key("run"), "spec")
  if known then return known == spec and 0 or -1 end
  redis.call("HSET", key("run"), "spec", spec, "state", "running", "reason", "", "created_ms", now_ms())
  if requested ~= "" then redis.call("HSET", key("run"), "requested", 1) end
  if policy ~= "" then redis.call("HSET", key("run"), "policy", policy) end
  if max_staleness ~= "" then redis.call("HSET", key("run"), "max_staleness", max_staleness) end
  if in_turn == "1" then redis.call("HSET", key("run"), "in_turn", 1) end
  if feedback == "1" then redis.call("HSET", key("run"), "feedback", 1) end
  if eval == "1" then redis.call("HSET", key("run"), "eval", 1) end
  redis.call("XGROUP", "CREATE", key("stream"), LEARNERS, "0", "MKSTREAM")
  return 1
end

-- The accepted indices of a complete group, in order.
local function members_of(group, size)
  local others = redis.call("HGET", key("group:" .. group), "members")
  if others then return cjson.decode(others) end
  local found = {}
  for i = 0, size - 1 do found[#found + 1] = i end
  return found
end

local function feed_back(text)
  if redis.call("HEXISTS", key("run"), "feedback") == 1 then redis.call("RPUSH", key("feedback"), text) end
end

-- What a learner may filter by (cjson), of a complete group; fresh: rewards by their field, in place of the stored ones.
local function facts_of(group, size, fresh)
  local names = {}
  for _, i in ipairs(members_of(group, size)) do
    names[#names + 1] = "reward:" .. i
    names[#names + 1] = "tokens:" .. i
    names[#names + 1] = "version:" .. i
  end
  local found = redis.call("HMGET", key("group:" .. group), unpack(names))
  local facts, tokens, first = { unjudged = 0, same = true }, 0, nil
  for i = 1, #found, 3 do
    local reward = fresh and fresh[names[i]] or found[i]
    if reward == "null" then
      facts.unjudged = facts.unjudged + 1
    else
      first = first or reward
      if reward ~= first then facts.same = false end
    end
    tokens = tokens + tonumber(found[i + 1])
    local version = tonumber(found[i + 2])
    if version and (not facts.version or version < tonumber(facts.version)) then facts.version = found[i + 2] end
  end
  facts.tokens = string.format("%.0f", tokens)
  facts.same = facts.same and first ~= nil
  return cjson.encode(facts)
end

-- Put a complete group on the stream.
local function deliver(group)
  local facts = facts_of(group, tonumber(redis.call("HGET", key("group:" .. group), "size")))
  local entry = redis.call("XADD", key("stream"), "*", "group", group, "facts", facts)
  redis.call("HSET", key("group:" .. group), "entry", entry)
  count("groups_complete")
end

-- Deliver the early groups whose turn it is, or all of them.
local function deliver_early(all)
  while true do
    local first = redis.call("ZRANGE", key("early"), 0, 0, "WITHSCORES")
    if not first[1] or not (all or tonumber(first[2]) == counted("in_turn")) then return end
    redis.call("ZREM", key("early"), first[1])
    count("groups_early", 0 - 1)
    deliver(first[1])
    count("in_turn")
  end
end

-- state, reason -> 1 done, 0 the run has ended otherwise, -1 no such run
function commands.set_state(state, reason)
  local current = redis.call("HGET", key("run"), "state")
  if not current then return -1 end
  if current == state then return 1 end
  if ended(current) then return 0 end
  redis.call("HSET", key("run"), "state", state, "reason", reason)
  if ended(state) then
    redis.call("HSET", key("run"), "ended_ms", now_ms())
    deliver_early(true)
  end
  wake()
  return 1
end

local function requested() return redis.call("HEXISTS", key("run"), "requested") == 1 end

local function evaluates() return redis.call("HEXISTS", key("run"), "eval") == 1 end

local function complete(group, size)
  if requested() then
    redis.call("HSET", key("group:" .. group), "facts", facts_of(group, size))
    count("requests_complete")
    wake()
    return
  end
  local name, members = key("group:" .. group), {}
  for _, field in ipairs(redis.call("HKEYS", name)) do
    local index = string.match(field, "^mark:(%d+)$")
    if index then members[#members + 1] = tonumber(index) end
  end
  table.sort(members)
  if members[size] ~= size - 1 then redis.call("HSET", name, "members", cjson.encode(members)) end
  local unjudged = 0
  for _, i in ipairs(members) do
    if redis.call("HGET", name, "reward:" .. i) == "null" then unjudged = unjudged + 1 end
  end
  feed_back(string.format("complete %s %d %s", group, size - unjudged, redis.call("HGET", name, "solved") or "0"))
  local ordinal = tonumber(string.match(group, "%-g(%d+)$"))
  if evaluates() then
    count("evals_complete")
  elseif redis.call("HEXISTS", key("run"), "in_turn") == 0 or ordinal >= RETURNED then
    deliver(group)
  else
    redis.call("ZADD", key("early"), ordinal, group)
    count("groups_early")
    deliver_early(false)
  end
  wake()
end

local function keep(id, payload, sidecar, head)
  redis.call("SET", key("payload:" .. id), payload)
  redis.call("SET", key("sidecar:" .. id), sidecar)
  redis.call("HSET", key("heads"), id, head)
end

-- group, version -> the version of the rules that the group's members are judged by: the first that was named for it
function commands.judge_by(group, version)
  if redis.call("EXISTS", key("run")) == 0 then return version end
  redis.call("HSETNX", key("rules"), group, version)
  return redis.call("HGET", key("rules"), group)
end

-- rollout id, group, index, size, mark, status, reward, rules, solved (1 or 0), tokens, version, payload, sidecar, head
-- -> 1 this record is the accepted one, 0 another attempt was accepted before, -1 no such run, -2 size disagrees,
--    -3 the run has ended, -4 the group is judged by other rules, -5 the group is complete without it
-- An aborted record of a group that is complete without it is kept beside the group, as surplus.
function commands.publish(id, group, index, size, mark, status, reward, rules, solved, tokens, version, payload, sidecar,
                          head)
  local state = redis.call("HGET", key("run"), "state")
  if not state then return -1 end
  local name = key("group:" .. group)
  local accepted = redis.call("HGET", name, "mark:" .. index) or redis.call("HGET", name, "surplus:" .. index)
  if accepted then return accepted == mark and 1 or 0 end
  local known = redis.call("HGET", name, "size")
  if known == size and redis.call("HGET", name, "accepted") == size then
    if status ~= "aborted" then return -5 end
    redis.call("HSET", name, "surplus:" .. index, mark)
    keep(id, payload, sidecar, head)
    count("surplus")
    redis.call("ZADD", key("order"), counted("accepted") + counted("surplus"), id)
    count("status:" .. status)
    return 1
  end
  if ended(state) then return -3 end
  if known and known ~= size then return -2 end
  if (redis.call("HGET", key("rules"), group) or rules) ~= rules then return -4 end
  redis.call("HSET", name, "size", size, "mark:" .. index, mark, "reward:" .. index, reward, "by:" .. index, rules,
    "tokens:" .. index, tokens, "version:" .. index, version)
  keep(id, payload, sidecar, head)
  redis.call("ZADD", key("order"), redis.call("HINCRBY", key("counts"), "accepted", 1) + counted("surplus"), id)
  local bytes = #payload + #sidecar + #head
  redis.call("HINCRBY", name, "bytes", bytes)
  if not (requested() or evaluates()) then count("bytes_queued", bytes) end
  if bytes > counted("bytes_largest") then redis.call("HSET", key("counts"), "bytes_largest", bytes) end
  count("status:" .. status)
  count("tokens", tokens)
  count("bytes", #payload)
  if reward == "null" then
    count("unjudged")
  else
    redis.call("HINCRBYFLOAT", key("counts"), "reward_sum", reward)
    count("solved", solved)
    redis.call("HINCRBY", name, "solved", solved)
  end
  if redis.call("HINCRBY", name, "accepted", 1) == tonumber(size) then complete(group, tonumber(size)) end
  return 1
end

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

-- The next group that is free, put back or expired ones first: entry id, group, facts (cjson); nil when there is none.
local function next_free(consumer, now)
  local free = redis.call("ZRANGEBYSCORE", key("held"), "-inf", now, "LIMIT", 0, 1)
  local entry
  if free[1] then
    entry = redis.call("XCLAIM", key("stream"), LEARNERS, consumer, 0, free[1])[1]
  else
    local read = redis.call("XREADGROUP", "GROUP", LEARNERS, consumer, "COUNT", 1, "STREAMS", key("stream"), ">")
    if not read then return nil end
    entry = read[1][2][1]
    count("groups_read")
    redis.call("ZADD", key("held"), 0, entry[1])
  end
  local group = entry[2][2]
  return entry[1], group, redis.call("HGET", key("group:" .. group), "facts") or entry[2][4]
end

local function bytes_of(group) return tonumber(redis.call("HGET", key("group:" .. group), "bytes") or "0") end

local function settle(entry, group, how)
  redis.call("XACK", key("stream"), LEARNERS, entry)
  redis.call("ZREM", key("held"), entry)
  redis.call("ZADD", key("settled"), now_ms(), entry)
  redis.call("HSET", key("group:" .. group), "settled", how)
  count("bytes_queued", 0 - bytes_of(group))
end

-- Have a stale group replaced, if its run replaces any and has not ended.
local function give_back(group)
  local found = redis.call("HMGET", key("run"), "max_staleness", "state")
  if not found[1] or ended(found[2]) then return end
  feed_back("stale " .. group)
  count("groups_returned")
end

local function unwanted(facts, filter)
  if filter.zero_variance == "drop" and facts.same then return "dropped_zero_variance" end
  if filter.max_staleness and filter.policy_version and facts.version then
    if filter.policy_version - tonumber(facts.version) > filter.max_staleness then return "dropped_stale" end
  end
end

local function answer(lease, expires, groups, now, more, learner)
  local next_expiry = redis.call("ZRANGE", key("held"), 0, 0, "WITHSCORES")[2]
  local last = redis.call("XREVRANGE", key("wake"), "+", "-", "COUNT", 1)[1]
  return { lease, expires, stream_state(learner), last and last[1] or "0-0",
    next_expiry and math.max(1, next_expiry - now) or 0, more and 1 or 0, groups }
end

local function described(group, facts_json)
  local found = redis.call("HMGET", key("group:" .. group), "size", "deliveries")
  return { group, found[1], found[2] or "0", facts_json, members_of(group, tonumber(found[1])) }
end

-- lease id, consumer, lease ms, most groups, most tokens (0: no bound), filter (cjson), learner or "", history, most
-- provisional acks of a learner
-- -> { lease id or "", its end in ms, stream state, wake id, ms to the next expiry or 0, 1 if groups were left for
--      lack of time, { { group, size, deliveries, facts (cjson) } … } } | "unknown" | "evaluates"
-- The same lease id again answers the same groups while the lease lives; a lease that has ended answers "lost", "acked",
-- "nacked" or "restored". A learner that may not lease gets the refusal of learners.refusal.
function commands.lease(id, consumer, lease_ms, max_groups, max_tokens, filter_json, learner, history, most)
  local now = now_ms()
  local name = key("lease:" .. id)
  local known = redis.call("HMGET", name, "state", "expires_ms", "entries")
  if known[1] then
    if known[1] ~= "live" then return known[1] end
    if now >= tonumber(known[2]) then return "lost" end
    local groups = {}
    learner = learner ~= "" and learner or nil
    for _, pair in ipairs(cjson.decode(known[3])) do groups[#groups + 1] = described(pair[2], pair[3]) end
    return answer(id, tonumber(known[2]), groups, now, false, learner)
  end
  if redis.call("EXISTS", key("run")) == 0 or requested() then return "unknown" end
  if evaluates() then return "evaluates" end
  learner = learner ~= "" and learner or nil
  if learner then
    local refused = learners.refusal(learner, history)
    if refused then return refused end
    local room = learners.room(learner, most)
    if room <= 0 then return { "checkpoint", most } end
    max_groups = math.min(max_groups, room)
  end
  local filter = cjson.decode(filter_json)
  local expires, left, drops = now + lease_ms, tonumber(max_tokens), 0
  local entries, groups = {}, {}
  while #groups < tonumber(max_groups) and drops < MOST_DROPS do
    local entry, group, facts_json = next_free(consumer, now)
    if not entry then break end
    local facts = cjson.decode(facts_json)
    local tokens = tonumber(facts.tokens)
    local reason = unwanted(facts, filter)
    if reason then
      settle(entry, group, "dropped")
      count(reason)
      if reason == "dropped_stale" then give_back(group) end
      drops = drops + 1
    else
      if left > 0 and #groups > 0 and tokens > left then break end
      left = left > 0 and math.max(1, left - tokens) or 0
      redis.call("ZADD", key("held"), expires, entry)
      if redis.call("HINCRBY", key("group:" .. group), "deliveries", 1) > 1 then count("groups_redelivered") end
      count("groups_leased")
      if filter.policy_version and facts.version then
        count("lag_groups")
        count("lag_sum", math.max(0, filter.policy_version - tonumber(facts.version)))
      end
      entries[#entries + 1] = { entry, group, facts_json }
      groups[#groups + 1] = described(group, facts_json)
    end
  end
  if drops > 0 then wake() end
  if #groups == 0 then return answer("", 0, groups, now, drops >= MOST_DROPS, learner) end
  redis.call("HSET", name, "consumer", consumer, "state", "live", "expires_ms", expires,
    "entries", cjson.encode(entries))
  if learner then learners.leased(learner, history, id, now, expires) end
  redis.call("PEXPIREAT", name, expires + KEEP_MS)
  return answer(id, expires, groups, now, false, learner)
end

-- group -> { run state, reason, accepted members, facts (cjson) or "", wake id } | "unknown", of a requested group
function commands.requested(group)
  local run = redis.call("HMGET", key("run"), "state", "reason", "requested")
  if not run[3] then return "unknown" end
  local found = redis.call("HMGET", key("group:" .. group), "accepted", "facts")
  local last = redis.call("XREVRANGE", key("wake"), "+", "-", "COUNT", 1)[1]
  return { run[1], run[2], found[1] or "0", found[2] or "", last and last[1] or "0-0" }
end

-- The reason why a lease cannot end so ("done": it ended so before), its entries, its learner
local function ending(id, wanted)
  local found = redis.call("HMGET", key("lease:" .. id), "state", "expires_ms", "entries", "learner", "history")
  local learner = found[4] or nil
  if not found[1] then return "unknown" end
  if learner and learners.refusal(learner, found[5]) then return "restored" end
  if found[1] == wanted then return "done", nil, learner end
  if found[1] ~= "live" then return found[1] end
  if now_ms() >= tonumber(found[2]) then return "lost" end
  return nil, cjson.decode(found[3]), learner
end

local function finish(id, state, learner)
  redis.call("HSET", key("lease:" .. id), "state", state)
  redis.call("HDEL", key("lease:" .. id), "entries")
  if learner then redis.call("ZREM", key("leases:" .. learner), id) end
end

-- lease id -> { "ok", stream state, number of the last ack of its learner or "" } | "unknown" | "lost" | "nacked"
-- | "restored"; repeating it is harmless
function commands.ack(id)
  local verdict, entries, learner = ending(id, "acked")
  if verdict and verdict ~= "done" then return verdict end
  if not verdict then
    if learner then
      redis.call("HSET", key("lease:" .. id), "acks", learners.acked(learner, entries))
    else
      for _, pair in ipairs(entries) do settle(pair[1], pair[2], "acked") end
    end
    count("groups_acked", #entries)
    finish(id, "acked", learner)
    wake()
  end
  return { "ok", stream_state(learner), redis.call("HGET", key("lease:" .. id), "acks") or "" }
end

-- lease id -> { "ok", stream state } | "unknown" | "lost" | "acked" | "restored"; repeating it is harmless
function commands.nack(id)
  local verdict, entries, learner = ending(id, "nacked")
  if verdict == "done" then return { "ok", stream_state(learner) } end
  if verdict then return verdict end
  for _, pair in ipairs(entries) do redis.call("ZADD", key("held"), 0, pair[1]) end
  finish(id, "nacked", learner)
  wake()
  return { "ok", stream_state(learner) }
end

-- Claim an idempotency key of the caller whose keys KEYS[1] is the base of: what is kept there, or nil when it was free.
-- Of the keys of the last keep_ms the latest most stay.
function commands.claim(name, pending, keep_ms, most)
  local kept = redis.call("GET", key(name))
  if kept then return kept end
  redis.call("SET", key(name), pending, "PX", keep_ms)
  redis.call("ZADD", key("order"), now_ms(), name)
  redis.call("PEXPIRE", key("order"), keep_ms)
  redis.call("ZREMRANGEBYSCORE", key("order"), "-inf", now_ms() - 2 * keep_ms)
  local over = redis.call("ZCARD", key("order")) - most
  if over > 0 then
    local oldest = redis.call("ZPOPMIN", key("order"), over)
    for at = 1, #oldest, 2 do redis.call("UNLINK", key(oldest[at])) end
  end
  return kept
end

-- lease id, groups… -> { "ok", stream state } | "unknown" | "lost" | "acked" | "nacked" | "restored"; the lease's other
-- groups are free at once
function commands.keep(id, ...)
  local verdict, entries = ending(id, "kept")
  if verdict then return verdict end
  local wanted, kept = {}, {}
  for _, group in ipairs({ ... }) do wanted[group] = true end
  for _, pair in ipairs(entries) do
    if wanted[pair[2]] then
      kept[#kept + 1] = pair
    else
      redis.call("ZADD", key("held"), 0, pair[1])
    end
  end
  redis.call("HSET", key("lease:" .. id), "entries", cjson.encode(kept))
  wake()
  return { "ok", stream_state() }
end

-- lease id, lease ms -> { "ok", end in ms } | "unknown" | "lost" | "acked" | "nacked" | "restored"
function commands.extend(id, lease_ms)
  local verdict, entries, learner = ending(id, "extended")
  if verdict then return verdict end
  local expires = now_ms() + lease_ms
  for _, pair in ipairs(entries) do redis.call("ZADD", key("held"), expires, pair[1]) end
  redis.call("HSET", key("lease:" .. id), "expires_ms", expires)
  if learner then redis.call("ZADD", key("leases:" .. learner), expires, id) end
  redis.call("PEXPIREAT", key("lease:" .. id), expires + KEEP_MS)
  return { "ok", expires }
end
