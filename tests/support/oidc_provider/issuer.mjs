// oidc-provider for tests. Each line of the standard input is a configuration, which is in force once it is answered by
// the port: {"keys": [private JWKs, the first of which signs], "clock": seconds by which its clock is ahead}.
import { createServer } from 'node:http';
import { createInterface } from 'node:readline';
import { Provider } from 'oidc-provider';

const trueTime = Date.now;
// Its notices about what tests do not need; the standard output has ports alone.
console.info = console.warn = () => {};
let answer;
const server = createServer((request, response) => answer(request, response));
await new Promise((listening) => server.listen(0, '127.0.0.1', listening));
const { port } = server.address();

for await (const line of createInterface({ input: process.stdin })) {
  const { keys, clock, clients } = JSON.parse(line);
  Date.now = () => trueTime() + clock * 1000;
  const provider = new Provider(`http://127.0.0.1:${port}`, {
    clients: Object.entries(clients).map(([id, secret]) => ({
      client_id: id, client_secret: secret, grant_types: ['client_credentials'], redirect_uris: [], response_types: [],
      token_endpoint_auth_method: 'client_secret_post',
    })),
    jwks: { keys },
    features: {
      devInteractions: { enabled: false },
      clientCredentials: { enabled: true },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => 'urn:lake',
        getResourceServerInfo: (_, resource) => ({
          audience: resource.replace('urn:', ''), scope: 'catalog PRINCIPAL_ROLE:ALL', accessTokenFormat: 'jwt',
          accessTokenTTL: 600, jwt: { sign: { alg: 'RS256' } },
        }),
      },
    },
  });
  answer = provider.callback();
  console.log(port);
}
process.exit();
