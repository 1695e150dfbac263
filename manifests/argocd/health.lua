-- Health of a FleetCluster or EchoStore for ArgoCD: the status says it all, the first match wins.
local health = { status = "Progressing", message = "waiting for the operator" }
local status = obj.status
if obj.metadata ~= nil and obj.metadata.deletionTimestamp ~= nil then
  health.message = "Pending deletion"
  return health
end
if status == nil or status.conditions == nil or status.observedGeneration == nil
    or status.observedGeneration ~= obj.metadata.generation then
  return health
end
if obj.metadata.annotations ~= nil and obj.metadata.annotations["ingero.io/paused"] == "true" then
  return { status = "Suspended", message = "paused by annotation" }
end
local found = {}
for _, condition in ipairs(status.conditions) do
  found[condition.type] = condition
end
for _, kind in ipairs({ "Stalled", "Degraded" }) do
  if found[kind] ~= nil and found[kind].status == "True" then
    return { status = "Degraded", message = found[kind].message }
  end
end
if found.Reconciling ~= nil and found.Reconciling.status == "True" then
  return { status = "Progressing", message = found.Reconciling.message }
end
if found.Ready ~= nil then
  if found.Ready.status == "True" then
    return { status = "Healthy", message = status.summary }
  end
  health.message = found.Ready.message
end
return health
