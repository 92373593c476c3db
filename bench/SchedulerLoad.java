// SPDX-License-Identifier: Apache-2.0
import java.io.File;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.security.PrivilegedExceptionAction;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Scanner;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import javax.management.MBeanServer;
import javax.management.ObjectName;
import javax.management.openmbean.TabularData;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateRequest;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateResponse;
import org.apache.hadoop.yarn.api.protocolrecords.GetNewApplicationRequest;
import org.apache.hadoop.yarn.api.protocolrecords.SubmitApplicationRequest;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.ApplicationSubmissionContext;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;
import org.apache.hadoop.yarn.api.records.ExecutionType;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.ReservationId;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.resourcemanager.ResourceManager;
import org.apache.hadoop.yarn.server.resourcemanager.nodelabels.RMNodeLabelsManager;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.event.SchedulerEvent;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.event.SchedulerEventType;
import org.apache.hadoop.yarn.sls.AMDefinition;
import org.apache.hadoop.yarn.sls.RMRunner;
import org.apache.hadoop.yarn.sls.SLSRunner;
import org.apache.hadoop.yarn.sls.appmaster.AMSimulator;
import org.apache.hadoop.yarn.sls.nodemanager.NMSimulator;
import org.apache.hadoop.yarn.sls.scheduler.SLSCapacityScheduler;

/**
 * Hadoop's scheduler load simulator at the pace of its ResourceManager instead of the clock's, for yarn_scale.py.
 *
 * <p>The ResourceManager is the real one; nodes, and the masters' side of the protocol, are the simulator's. In each round every node
 * and every master has one heartbeat, so a round is the same work whoever decides, and what differs is how long it takes. Each command
 * is a line on standard input, each answer a line on standard output: {@code measure ROUNDS}, {@code fill}.
 */
public final class SchedulerLoad extends SLSRunner {
  private static final String[] LABELS = {"v100", "a100", "h100"};
  private static final String SHARE = "gpusage.io/share";
  private static final String GPU = "yarn.io/gpu";
  private static final int MASTERS = 200;
  private static final int WIDTH = 120; // containers that a master wants at once: more than there is room for
  private static final int TASKS = 1200; // of one master, which then ends; another one takes its place
  private static final int MOST_AHEAD = 400; // heartbeats that the scheduler may be behind with
  private static final int FOREVER_MS = 1 << 30;

  private static final Resource TASK = Resource.newInstance(8 * 1024, 4);
  private static final AtomicLong UPDATES = new AtomicLong();

  private final Map<NodeId, NMSimulator> nodes = new ConcurrentHashMap<>();
  private final Map<ApplicationId, AMSimulator> known = new ConcurrentHashMap<>();
  private final List<NMSimulator> order = new ArrayList<>();
  private final List<Master> masters = new ArrayList<>();
  private final List<String> plans;
  private final RMRunner runner;
  private ResourceManager rm;
  private long heartbeats;
  private long[] allocations = new long[LABELS.length]; // of each label's nodes, since the last answer
  private long applications;
  private long lifetimeMs;
  private int tasks = TASKS;

  private SchedulerLoad(String folder, List<String> plans) throws Exception {
    super(new YarnConfiguration());
    this.plans = plans;
    runner = new RMRunner(getConf(), this);
    runner.setMetricsOutputDir(folder);
    runner.setTableMapping(new File(folder, "racks").toString()); // an empty file: one rack
  }

  /** Arguments: a scratch folder, how many nodes, and a plan for each label; without plans, masters ask for shares and labels. */
  public static void main(String[] arguments) {
    try {
      List<String> plans = List.of(arguments).subList(2, arguments.length);
      SchedulerLoad load = new SchedulerLoad(arguments[0], plans);
      load.begin(Integer.parseInt(arguments[1]));
      System.out.println("{}");
      for (Scanner commands = new Scanner(System.in); commands.hasNext(); ) {
        System.out.println(commands.next().equals("measure") ? load.measure(commands.nextInt()) : load.fill());
      }
      System.exit(0);
    } catch (Throwable failure) { // the ResourceManager's threads would go on without us
      failure.printStackTrace();
      System.exit(1);
    }
  }

  @Override
  public Map<NodeId, NMSimulator> getNmMap() {
    return nodes;
  }

  @Override
  public AMSimulator getAMSimulatorByAppId(ApplicationId application) {
    return known.get(application);
  }

  private void begin(int count) throws Exception {
    runner.startRM();
    rm = runner.getRm();
    RMNodeLabelsManager labels = rm.getRMContext().getNodeLabelManager();
    labels.addToCluserNodeLabelsWithDefaultExclusivity(Set.of(LABELS));
    Resource offered = Resource.newInstance(256 * 1024, 64);
    offered.setResourceValue(SHARE, 400);
    Map<NodeId, Set<String>> labelled = new HashMap<>();
    for (int number = 0; number < count; number++) {
      NMSimulator node = new NMSimulator();
      String name = "/default-rack/127.1." + number / 250 + "." + (1 + number % 250);
      node.init(name, offered, 0, 1000, rm, -1);
      nodes.put(node.getNode().getNodeID(), node);
      order.add(node);
      labelled.put(node.getNode().getNodeID(), Collections.singleton(LABELS[number % LABELS.length]));
    }
    labels.replaceLabelsOnNode(labelled);
    CapacityScheduler scheduler = (CapacityScheduler) rm.getResourceScheduler(); // it hears of nodes and of their labels later than others
    while (!order.stream().map(node -> node.getNode().getNodeID()).allMatch(id -> scheduler.getNode(id) != null
        && scheduler.getNode(id).getLabels().equals(labelled.get(id)))) {
      Thread.sleep(20);
    }
    for (int number = 0; number < MASTERS; number++) {
      masters.add(started(number));
    }
  }

  private Master started(int number) throws Exception {
    Master master = new Master(number, applications < MASTERS ? tasks * (1 + number) / MASTERS : tasks);
    master.firstStep();
    applications++;
    return master;
  }

  private String measure(int rounds) throws Exception {
    allocations = new long[LABELS.length];
    long applicationsBefore = applications;
    long cpuBefore = threadsNs();
    long began = System.nanoTime();
    for (int round = 0; round < rounds; round++) {
      round();
    }
    return String.format(
        "{\"allocations\": %s, \"applications\": %d, \"wall_s\": %.4f, \"cpu_s\": %.4f}",
        Arrays.toString(allocations),
        applications - applicationsBefore,
        (System.nanoTime() - began) / 1e9,
        (threadsNs() - cpuBefore) / 1e9);
  }

  /** Return the processor time of all threads but those that compile and collect garbage. */
  private static long threadsNs() {
    ThreadMXBean threads = ManagementFactory.getThreadMXBean();
    return Arrays.stream(threads.getAllThreadIds()).map(threads::getThreadCpuTime).filter(time -> time > 0).sum();
  }

  /** Fill all nodes with containers that stay, and return the heap that is in use then. */
  private String fill() throws Exception {
    lifetimeMs = FOREVER_MS;
    tasks = Integer.MAX_VALUE;
    int rounds = 0;
    do {
      allocations = new long[LABELS.length];
      for (int round = 0; round < 4; round++) {
        round();
      }
    } while (Arrays.stream(allocations).sum() > 0 && ++rounds < 50);
    long least = Long.MAX_VALUE;
    for (int collection = 0; collection < 3; collection++) {
      System.gc();
      Thread.sleep(200);
      least = Math.min(least, ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed());
    }
    int running = masters.stream().mapToInt(master -> master.running).sum();
    return String.format(
        "{\"heap_bytes\": %d, \"containers\": %d, \"plans_taken\": %d, \"asks_changed\": %d, \"failures\": %d}",
        least,
        running,
        counter("PLANS_TAKEN"),
        counter("ASKS_CHANGED"),
        counter("FAILURES"));
  }

  /** Return what gpusage's own metrics say, 0 where it is not there. */
  private static long counter(String name) throws Exception {
    ObjectName metrics = new ObjectName("org.gpusage:type=Metrics");
    MBeanServer beans = ManagementFactory.getPlatformMBeanServer();
    if (!beans.isRegistered(metrics)) {
      return 0;
    }
    return (Long) ((TabularData) beans.getAttribute(metrics, "Counts")).get(new Object[] {name}).get("value");
  }

  private void round() throws Exception {
    int every = Math.max(1, order.size() / MASTERS);
    for (int number = 0; number < order.size(); number++) {
      order.get(number).middleStep();
      heartbeats++;
      pace();
      if (number % every == 0 && number / every < MASTERS) {
        int turn = number / every;
        masters.get(turn).middleStep();
        if (masters.get(turn).over) {
          masters.set(turn, started(turn));
        }
      }
    }
  }

  private void pace() {
    int ahead = Math.min(MOST_AHEAD, order.size() / 4); // of one node there is never more than one to be handled
    if (heartbeats - UPDATES.get() < ahead) {
      return;
    }
    long began = System.nanoTime();
    while (heartbeats - UPDATES.get() > ahead / 2) {
      LockSupport.parkNanos(500_000);
      if (System.nanoTime() - began > 60_000_000_000L) {
        throw new IllegalStateException("The scheduler must handle each heartbeat within 60 s; it hangs");
      }
    }
  }

  /** The simulator's scheduler, which is Hadoop's, counting the heartbeats that it is done with. */
  public static final class PacedScheduler extends SLSCapacityScheduler {
    @Override
    public void handle(SchedulerEvent event) {
      super.handle(event);
      if (event.getType() == SchedulerEventType.NODE_UPDATE) {
        UPDATES.incrementAndGet();
      }
    }
  }

  /** What a master is, to the simulator. */
  private static final class Definition extends AMDefinition {
    Definition() {
      super(
          new AmDefinitionBuilder() {
            {
              queue = "default";
              amResource = Resource.newInstance(1024, 1);
              taskContainers = Collections.emptyList();
            }
          });
    }
  }

  /** A master that has a number of containers running at once until all of its tasks are done. */
  private final class Master extends AMSimulator {
    private final int number;
    private int todo;
    private int open;
    private int running;
    private boolean over;
    private UserGroupInformation user;

    Master(int number, int tasks) {
      this.number = number;
      todo = tasks;
      init(new Definition(), SchedulerLoad.this.rm, SchedulerLoad.this, false, 0, 1000, known);
    }

    @Override
    public void firstStep() throws Exception {
      appId = rm.getClientRMService().getNewApplication(GetNewApplicationRequest.newInstance()).getApplicationId();
      known.put(appId, this);
      String label = LABELS[number % LABELS.length];
      Map<String, String> environment = new HashMap<>();
      if (!plans.isEmpty()) {
        environment.put("GPUSAGE_PLAN", plans.get(number % LABELS.length));
      }
      ContainerLaunchContext master =
          ContainerLaunchContext.newInstance(new HashMap<>(), environment, new ArrayList<>(), new HashMap<>(), null, new HashMap<>());
      ApplicationSubmissionContext context =
          ApplicationSubmissionContext.newInstance(
              appId, "load", "default", Priority.newInstance(0), master, false, true, 1, Resource.newInstance(1024, 1));
      if (plans.isEmpty()) {
        context.setNodeLabelExpression(label);
      }
      UserGroupInformation.createRemoteUser("load")
          .doAs(
              (PrivilegedExceptionAction<?>)
                  () -> rm.getClientRMService().submitApplication(SubmitApplicationRequest.newInstance(context)));
    }

    @Override
    protected void processResponseQueue() throws Exception {
      for (AllocateResponse response; (response = responseQueue.poll()) != null; ) {
        for (Container container : response.getAllocatedContainers()) {
          nodes.get(container.getNodeId()).addNewContainer(bare(container), lifetimeMs, appId);
          allocations[container.getNodeId().getPort() % LABELS.length]++; // the simulator numbers its nodes so
        }
        int served = response.getAllocatedContainers().size();
        todo = Math.max(0, todo - Math.max(0, served - open)); // an ask may cross with what was on its way, and bring too many
        open = Math.max(0, open - served);
        running += served - response.getCompletedContainersStatuses().size();
      }
    }

    /** Return what the simulated node is to keep: a master's own copy would count as the ResourceManager's heap. */
    private Container bare(Container container) {
      return Container.newInstance(container.getId(), container.getNodeId(), "", TASK, container.getPriority(), null);
    }

    @Override
    protected void sendContainerRequest() throws Exception {
      List<ResourceRequest> asks = new ArrayList<>();
      int more = Math.min(todo, WIDTH - open - running);
      if (more > 0) {
        todo -= more;
        open += more;
        Resource wanted = Resource.newInstance(TASK);
        wanted.setResourceValue(plans.isEmpty() ? SHARE : GPU, plans.isEmpty() ? 50 : 1);
        asks.add(createResourceRequest(wanted, ExecutionType.GUARANTEED, ResourceRequest.ANY, 20, 0, open));
      }
      AllocateRequest request = createAllocateRequest(asks);
      if (user == null) {
        user = UserGroupInformation.createRemoteUser(appAttemptId.toString());
        user.addTokenIdentifier(rm.getRMContext().getRMApps().get(appId).getRMAppAttempt(appAttemptId).getAMRMToken().decodeIdentifier());
      }
      responseQueue.add(user.doAs((PrivilegedExceptionAction<AllocateResponse>) () -> rm.getApplicationMasterService().allocate(request)));
    }

    @Override
    protected void checkStop() {
      over = todo == 0 && open == 0 && running == 0;
      if (over) {
        try {
          lastStep();
        } catch (Exception failure) {
          throw new IllegalStateException(failure);
        }
      }
    }

    @Override
    public void initReservation(ReservationId reservation, long deadline, long now) {}
  }
}
