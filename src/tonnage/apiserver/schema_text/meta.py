"""What all kinds share: metadata, selectors, Status, options."""

TEXT = """\
@meta.v1
ObjectMeta
  annotations {str}
  creationTimestamp time
  deletionGracePeriodSeconds long?
  deletionTimestamp time
  finalizers [str]+
  generateName str
  generation long
  labels {str}
  managedFields [ManagedFieldsEntry]
  name str
  namespace str
  ownerReferences [OwnerReference]+uid
  resourceVersion str
  selfLink str
  uid str
ManagedFieldsEntry
  apiVersion str
  fieldsType str
  fieldsV1 any
  manager str
  operation str
  subresource str
  time time
OwnerReference
  apiVersion! str
  blockOwnerDeletion bool?
  controller bool?
  kind! str
  name! str
  uid! str
LabelSelector
  matchExpressions [LabelSelectorRequirement]
  matchLabels {str}
LabelSelectorRequirement
  key! str
  operator! str
  values [str]
FieldSelectorRequirement
  key! str
  operator! str
  values [str]
DeleteOptions
  apiVersion str
  dryRun [str]
  gracePeriodSeconds long?
  ignoreStoreReadErrorWithClusterBreakingPotential bool?
  kind str
  orphanDependents bool?
  preconditions Preconditions
  propagationPolicy str?
Preconditions
  resourceVersion str?
  uid str?
Status
  apiVersion str
  code int
  details StatusDetails
  kind str
  message str
  metadata ListMeta
  reason str
  status str
StatusDetails
  causes [StatusCause]
  group str
  kind str
  name str
  retryAfterSeconds int
  uid str
StatusCause
  field str
  message str
  reason str
ListMeta
  continue str
  remainingItemCount long?
  resourceVersion str
  selfLink str
"""
