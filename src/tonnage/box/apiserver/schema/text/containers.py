"""Schema text: containers and their state."""

TEXT = """\
@core.v1
Container: One program of a pod.
  args [str]: Arguments, instead of the image's.
  command [str]: Program and arguments, instead of the image's.
  env [EnvVar]+name: Environment variables.
  envFrom [EnvFromSource]: Sources of many environment variables.
  image str: Name of the image.
  imagePullPolicy str: When to fetch the image: Always, IfNotPresent, Never.
  lifecycle Lifecycle: What is done after start and before stop.
  livenessProbe Probe: When this fails the container is started again.
  name! str: Name, unique in the pod; a DNS label.
  ports [ContainerPort]+containerPort: Ports that are listened on.
  readinessProbe Probe: While this fails the container is not ready.
  resizePolicy [ContainerResizePolicy]: What a change of resources takes.
  resources ResourceRequirements: Resources that are asked for.
  restartPolicy str?: When containers are started again: Always, OnFailure, Never.
  restartPolicyRules [ContainerRestartRule]: When to start it again.
  securityContext SecurityContext: As whom and with which rights it runs.
  startupProbe Probe: Until this succeeds the other probes wait.
  stdin bool: Whether input stays open.
  stdinOnce bool: Whether input is closed after the first client.
  terminationMessagePath str: File that says why it ended.
  terminationMessagePolicy str: File, or FallbackToLogsOnError.
  tty bool: Whether it gets a terminal.
  volumeDevices [VolumeDevice]+devicePath: Where the container sees raw block volumes.
  volumeMounts [VolumeMount]+mountPath: Where the container sees volumes.
  workingDir str: Directory to start in.
EnvVar: An environment variable.
  name! str: Name.
  value str: Value.
  valueFrom EnvVarSource: Where the value comes from.
EnvVarSource: Where the value of a variable comes from.
  configMapKeyRef ConfigMapKeySelector: A key of a ConfigMap.
  fieldRef ObjectFieldSelector: A field of the pod.
  fileKeyRef FileKeySelector: A key of a file in a volume.
  resourceFieldRef ResourceFieldSelector: A resource of a container.
  secretKeyRef SecretKeySelector: A key of a Secret.
ConfigMapKeySelector: A key of a ConfigMap.
  key! str: Key.
  name str: Name.
  optional bool?: Whether it may be missing.
ObjectFieldSelector: A field of the pod.
  apiVersion str: Group and version of the object.
  fieldPath! str: Path of the field.
FileKeySelector
  key! str: Key.
  optional bool?: Whether it may be missing.
  path! str: Path.
  volumeName! str: Name of the PersistentVolume.
ResourceFieldSelector: A resource of a container.
  containerName str: Which container.
  divisor quantity: Unit of the number.
  resource! str: Which resource.
SecretKeySelector: A key of a Secret.
  key! str: Key.
  name str: Name.
  optional bool?: Whether it may be missing.
EnvFromSource: A source of many variables.
  configMapRef ConfigMapEnvSource: A ConfigMap.
  prefix str: Beginning of the names.
  secretRef SecretEnvSource: The Secret that holds credentials.
ConfigMapEnvSource
  name str: Name.
  optional bool?: Whether it may be missing.
SecretEnvSource
  name str: Name.
  optional bool?: Whether it may be missing.
Lifecycle: What is done after a container's start and before its stop.
  postStart LifecycleHandler: Right after the start.
  preStop LifecycleHandler: Right before the stop.
  stopSignal str?: Signal that stops it.
LifecycleHandler: What to do.
  exec ExecAction: A command that must succeed.
  httpGet HTTPGetAction: A request that must succeed.
  sleep SleepAction: A pause.
  tcpSocket TCPSocketAction: A connection that must succeed.
ExecAction: A command.
  command [str]: Program and arguments, instead of the image's.
HTTPGetAction: A GET request.
  host str: Host.
  httpHeaders [HTTPHeader]: Headers of the request.
  path str: Path.
  port! intstr: Port: number or name.
  scheme str: HTTP or HTTPS.
HTTPHeader: A header.
  name! str: Name.
  value! str: Value.
SleepAction: A pause.
  seconds! long: How many seconds.
TCPSocketAction: A connection.
  host str: Host.
  port! intstr: Port: number or name.
Probe: A check of a container, repeated.
  exec ExecAction: A command that must succeed.
  failureThreshold int: Failures in a row that count.
  grpc GRPCAction: A health call that must succeed.
  httpGet HTTPGetAction: A request that must succeed.
  initialDelaySeconds int: Seconds before the first check.
  periodSeconds int: Seconds between checks.
  successThreshold int: Successes in a row that count.
  tcpSocket TCPSocketAction: A connection that must succeed.
  terminationGracePeriodSeconds long?: Seconds between the polite and the hard end.
  timeoutSeconds int: Seconds a check may take.
GRPCAction: A gRPC health call.
  port! int: Port: number or name.
  service str?: Name of the service.
ContainerPort: A port that a container listens on.
  containerPort! int: Port number inside.
  hostIP str: Address of its node.
  hostPort int: Port number on the node.
  name str: Name.
  protocol str: TCP, UDP or SCTP.
ContainerResizePolicy
  resourceName! str: Which resource.
  restartPolicy! str: When containers are started again: Always, OnFailure, Never.
ResourceRequirements: Compute resources that are asked for, and their bounds.
  claims [ResourceClaim]: Resource claims that are used.
  limits {quantity}: What may be used at most, by resource.
  requests {quantity}: What is asked for, by resource.
ResourceClaim: A claim of devices.
  name! str: Name.
  request str
ContainerRestartRule
  action! str: What was done.
  exitCodes ContainerRestartRuleOnExitCodes: Exit codes.
ContainerRestartRuleOnExitCodes
  operator! str: How key and values relate.
  values [int]: Values.
SecurityContext: As whom and with which rights a container runs.
  allowPrivilegeEscalation bool?: Whether a process may gain more rights than its parent.
  appArmorProfile AppArmorProfile: AppArmor profile.
  capabilities Capabilities: Linux capabilities to add and drop.
  privileged bool?: Run with all rights on the node.
  procMount str?: How /proc is mounted.
  readOnlyRootFilesystem bool?: Make the root read-only.
  runAsGroup long?: Group id.
  runAsNonRoot bool?: Refuse to run as root.
  runAsUser long?: User id.
  seLinuxOptions SELinuxOptions: SELinux label.
  seccompProfile SeccompProfile: Which system calls are allowed.
  windowsOptions WindowsSecurityContextOptions: Settings for Windows.
AppArmorProfile: An AppArmor profile.
  localhostProfile str?: File with the profile.
  type! str: Which sort it is.
Capabilities: Linux capabilities.
  add [str]: What to add.
  drop [str]: What to take away.
SELinuxOptions: An SELinux label.
  level str: Level.
  role str: Role.
  type str: Which sort it is.
  user str: Name of the user.
SeccompProfile: Allowed system calls.
  localhostProfile str?: File with the profile.
  type! str: Which sort it is.
WindowsSecurityContextOptions
  gmsaCredentialSpec str?
  gmsaCredentialSpecName str?
  hostProcess bool?
  runAsUserName str?: User name.
VolumeDevice: Where a container sees a raw block volume.
  devicePath! str: Device file inside the container.
  name! str: Name of the pod's volume.
VolumeMount: Where a container sees a volume.
  mountPath! str: Directory inside the container.
  mountPropagation str?: Whether mounts made later are seen on the other side.
  name! str: Name of the pod's volume.
  readOnly bool: Mount it read-only.
  recursiveReadOnly str?: Whether mounts below are read-only too.
  subPath str: Part of the volume to mount.
  subPathExpr str: Part of the volume to mount, with variables.
EphemeralContainer: A container added to a running pod to look into it.
  args [str]: Arguments, instead of the image's.
  command [str]: Program and arguments, instead of the image's.
  env [EnvVar]+name: Environment variables.
  envFrom [EnvFromSource]: Sources of many environment variables.
  image str: Name of the image.
  imagePullPolicy str: When to fetch the image: Always, IfNotPresent, Never.
  lifecycle Lifecycle: What is done after start and before stop.
  livenessProbe Probe: When this fails the container is started again.
  name! str: Name.
  ports [ContainerPort]+containerPort: Ports that are listened on.
  readinessProbe Probe: While this fails the container is not ready.
  resizePolicy [ContainerResizePolicy]: What a change of resources takes.
  resources ResourceRequirements: Resources that are asked for.
  restartPolicy str: When containers are started again: Always, OnFailure, Never.
  restartPolicyRules [ContainerRestartRule]: When to start it again.
  securityContext SecurityContext: As whom and with which rights it runs.
  startupProbe Probe: Until this succeeds the other probes wait.
  stdin bool: Whether input stays open.
  stdinOnce bool: Whether input is closed after the first client.
  targetContainerName str: Container whose processes it sees.
  terminationMessagePath str: File that says why it ended.
  terminationMessagePolicy str: File, or FallbackToLogsOnError.
  tty bool: Whether it gets a terminal.
  volumeDevices [VolumeDevice]+devicePath: Where the container sees raw block volumes.
  volumeMounts [VolumeMount]+mountPath: Where the container sees volumes.
  workingDir str: Directory to start in.
ContainerStatus: The state of a container.
  allocatedResources {quantity}: Resources set aside for it.
  allocatedResourcesStatus [ResourceStatus]+name: State of the devices.
  containerID str: The runtime's id.
  image! str: Name of the image.
  imageID! str: The image's id.
  lastState ContainerState: How it ended last.
  name! str: Name.
  ready! bool: Whether it is ready.
  resources ResourceRequirements: Resources that are asked for.
  restartCount! int: How often it was started again.
  started bool?: Whether it has started.
  state ContainerState: What it is doing.
  stopSignal str?: Signal that stops it.
  user ContainerUser: Name of the user.
  volumeMounts [VolumeMountStatus]+mountPath: Where the container sees volumes.
ResourceStatus
  name! str: Name.
  resources [ResourceHealth]: Resources that are asked for.
ResourceHealth
  health str: How it is.
  resourceID! str: Which device.
ContainerState: What a container is doing: one of waiting, running, terminated.
  running ContainerStateRunning: It runs.
  terminated ContainerStateTerminated: It has ended.
  waiting ContainerStateWaiting: It does not run yet.
ContainerStateRunning: It runs.
  startedAt time: When it began.
ContainerStateTerminated: It has ended.
  containerID str: The runtime's id.
  exitCode! int: Its exit code.
  finishedAt time: When it ended.
  message str: Why, for people.
  reason str: Why, in one word for programs.
  signal int: The signal that ended it.
  startedAt time: When it began.
ContainerStateWaiting: It does not run yet.
  message str: Why, for people.
  reason str: Why, in one word for programs.
ContainerUser: As whom it runs.
  linux LinuxContainerUser: User and groups on Linux.
LinuxContainerUser: User and groups.
  gid! long: Group id.
  supplementalGroups [long]: Further group ids.
  uid! long: Identity, unique in space and time.
VolumeMountStatus: How a volume is mounted.
  mountPath! str: Directory inside the container.
  name! str: Name.
  readOnly bool: Mount it read-only.
  recursiveReadOnly str?: Whether mounts below are read-only too.
"""
