"""Schema text: metadata, selectors, Status, options."""

TEXT = """\
@meta.v1
ObjectMeta: What every object has: name, labels, owners, times.
  annotations {str}: Key-value pairs for programs, not to select by.
  creationTimestamp time: When it was made.
  deletionGracePeriodSeconds long?: Seconds until it is gone.
  deletionTimestamp time: When its deletion was asked for.
  finalizers [str]+: Who must act before it goes.
  generateName str: Beginning of a name that the server completes.
  generation long: Counts changes of what is wanted.
  labels {str}: Key-value pairs to select by.
  managedFields [ManagedFieldsEntry]: Who set which fields.
  name str: Name.
  namespace str: Namespace.
  ownerReferences [OwnerReference]+uid: What it belongs to.
  resourceVersion str: Which version of the object this is.
  selfLink str: Not used any more.
  uid str: Identity, unique in space and time.
ManagedFieldsEntry: Who set which fields.
  apiVersion str: Group and version of the object.
  fieldsType str: Format of the fields.
  fieldsV1 any: The fields.
  manager str: Who.
  operation str: Which operation.
  subresource str: Part of the resource.
  time time: When.
OwnerReference: An object that this one belongs to, and goes with.
  apiVersion! str: Group and version of the object.
  blockOwnerDeletion bool?: Whether the owner stays until this is gone.
  controller bool?: Whether the owner manages it.
  kind! str: Kind of the object.
  name! str: Name.
  uid! str: Identity, unique in space and time.
LabelSelector: Selects objects by labels; all conditions must hold, none selects everything.
  matchExpressions [LabelSelectorRequirement]: Conditions on labels.
  matchLabels {str}: Labels with these values.
LabelSelectorRequirement: One condition on a label.
  key! str: Key.
  operator! str: How key and values relate.
  values [str]: Values.
FieldSelectorRequirement
  key! str: Key.
  operator! str: How key and values relate.
  values [str]: Values.
DeleteOptions: How to delete.
  apiVersion str: Group and version of the object.
  dryRun [str]: Do all but write.
  gracePeriodSeconds long?: Seconds until it is ended hard.
  ignoreStoreReadErrorWithClusterBreakingPotential bool?
  kind str: Kind of the object.
  orphanDependents bool?: Old form of propagationPolicy.
  preconditions Preconditions: What must hold.
  propagationPolicy str?: What happens to what it owns: Orphan, Background, Foreground.
Preconditions: What must hold for a deletion.
  resourceVersion str?: Which version of the object this is.
  uid str?: Identity, unique in space and time.
Status: The result of a request that answers no object.
  apiVersion str: Group and version of the object.
  code int: HTTP status.
  details StatusDetails: More about it.
  kind str: Kind of the object.
  message str: Why, for people.
  metadata ListMeta: Name, labels, owners and times.
  reason str: Why, in one word for programs.
  status str: What is.
StatusDetails: More about a failure.
  causes [StatusCause]: The single faults.
  group str: Group.
  kind str: Kind of the object.
  name str: Name.
  retryAfterSeconds int: Seconds to wait before trying again.
  uid str: Identity, unique in space and time.
StatusCause: One fault.
  field str: Path of the field.
  message str: Why, for people.
  reason str: Why, in one word for programs.
ListMeta: Where a list stands.
  continue str: Where the next page begins.
  remainingItemCount long?: How many items are still to come.
  resourceVersion str: Which version of the object this is.
  selfLink str: Not used any more.
"""
