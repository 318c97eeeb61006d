-- Health of a JobSet (jobset.x-k8s.io) for Argo CD. Put it into argocd-cm under
-- resource.customizations.health.jobset.x-k8s.io_JobSet. docs/neighbours.md says what it shows, and
-- health_test.py tests it. It needs Lua 5.1, and of its libraries only ipairs.

local spec = obj.spec or {}
local status = obj.status or {}
local replicated_jobs = spec.replicatedJobs or {}
local restart = status.inPlaceRestart or {}

local function health(code, message)
  return { status = code, message = message or "" }
end

-- The condition, if it exists and has this status.
local function condition(kind, is)
  for _, found in ipairs(status.conditions or {}) do
    if found.type == kind and found.status == is then
      return found
    end
  end
  return nil
end

local failed = condition("Failed", "True")
if failed then
  return health("Degraded", failed.message)
end
local completed = condition("Completed", "True")
if completed then
  return health("Healthy", completed.message)
end

-- Uses spec.suspend, not the condition, which stays true after a resume until the startup policy is done.
if spec.suspend then
  local suspended = condition("Suspended", "True")
  return health("Suspended", suspended and suspended.message or "jobset is being suspended")
end

-- An operator must act: the message names the pod and the node.
local blocked = condition("RestartBlocked", "True")
if blocked then
  return health("Degraded", blocked.message)
end

local restarting = condition("RestartingJobSet", "True")
if restarting then
  return health("Progressing", restarting.message)
end
if restart.phase == "Stopping" or restart.phase == "Parked" or restart.phase == "Releasing" then
  local cause = restart.cause and restart.cause.message
  return health("Progressing", "workers restart in place" .. (cause and cause ~= "" and ": " .. cause or ""))
end
if restart.phase == "Failed" then
  return health("Degraded", "failurePolicy.maxRestarts is used up")
end
if restart.phase == "Recreating" then
  return health("Progressing", "the Jobs are being recreated")
end
local worker = (restart.workerRestarts or {})[1]
if worker then
  return health("Progressing", "worker " .. (worker.index or 0) .. " of " .. worker.job .. " restarts")
end

-- A gang is up when its minimum runs: Jobs with optional workers do not count as ready.
local gang = condition("MinAvailable", "False")
if gang then
  return health("Progressing", gang.message)
end
local has_minimum = condition("MinAvailable", "True") ~= nil

-- True if a gang starts with fewer than all pods of a replicatedJob.
local function has_optional_workers(replicated_job)
  local stated = spec.gang or {}
  local minimum = #replicated_jobs == 1 and stated.minAvailable or nil
  for _, entry in ipairs(stated.replicatedJobs or {}) do
    if entry.name == replicated_job.name then
      minimum = entry.minAvailable
    end
  end
  local job = (replicated_job.template or {}).spec or {}
  return minimum ~= nil and minimum < (replicated_job.replicas or 1) * (job.parallelism or 1)
end

local startup = condition("StartupPolicyInProgress", "True")
if startup then
  return health("Progressing", startup.message)
end

local counts = {}
for _, found in ipairs(status.replicatedJobsStatus or {}) do
  counts[found.name] = found
end
local policy = spec.executionPolicy or {}
local in_order = policy.executionPolicyOrder == "InOrder"
local until_ended = in_order and policy.replicatedJobsStatus ~= "Ready" and policy.replicatedJobsStatus ~= "Active"
local until_failed = in_order and policy.replicatedJobsStatus == "Failed"

-- How many Jobs of a replicatedJob have succeeded, or failed if the policy waits for failures.
local function done(count)
  return (count.succeeded or 0) + (until_failed and count.failed or 0)
end

local function has_ended(replicated_job)
  return done(counts[replicated_job.name] or {}) >= (replicated_job.replicas or 1)
end

-- True if a replicatedJob starts only when others have ended, so that it need not be up yet.
local function waits(index)
  for before = 1, index - 1 do
    local other = replicated_jobs[before]
    if until_ended and not has_ended(other) then
      return true
    end
    for _, on in ipairs(replicated_jobs[index].dependsOn or {}) do
      if on.name == other.name and on.status == "Complete" and not has_ended(other) then
        return true
      end
    end
  end
  return false
end

local all = true
for index, replicated_job in ipairs(replicated_jobs) do
  local count = counts[replicated_job.name]
  local wanted = replicated_job.replicas or 1
  if not count then
    return health("Progressing", "no Jobs yet")
  end
  local up = (count.ready or 0) + done(count)
  if up < wanted and not waits(index) then
    -- A Job without all of its optional workers is not ready, and may never be. Its counts do not say
    -- which of its pods are ready.
    local excused = has_minimum and has_optional_workers(replicated_job)
    if not excused or (count.active or 0) + done(count) < wanted then
      return health("Progressing", replicated_job.name .. ": " .. up .. " of " .. wanted .. " Jobs are ready")
    end
    all = false
  end
end
return health("Healthy", all and "all workers run" or "the minimum of the gang runs")
